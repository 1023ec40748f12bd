"""Who may wait, and for how long. A refusal comes at once and says when to come back."""

from __future__ import annotations

from router.board import Board
from router.drain_rate import DrainRate
from router.endings import Endings
from router.member import MemberState
from router.request import Job, Request
from twolane.errors import DeadlineError, OverloadedError, UnavailableError

UNKNOWN_WAIT_S = 1.0  # for RetryInfo before anything was seen to drain


class Admission:
    """The door to the waiting queue, and the clock of those inside."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings
        self._config = board.config.admission
        self._drain_rate = DrainRate()
        self._last_servable: dict[str, float] = {}

    def check(self, job: Job, now: float) -> None:
        """Raises `DeadlineError` or `OverloadedError`; else the job may be queued."""
        if job.deadline is not None and now >= job.deadline:
            self._board.counters["refused.deadline"] += 1
            raise DeadlineError(
                "the deadline had passed when the request arrived",
                metadata={"time_left_s": f"{job.deadline - now:.3f}"},
            )
        n_waiting = len(self._board.queue)
        if n_waiting >= self._config.max_queued:
            self._board.counters["refused.queue_full"] += 1
            raise OverloadedError(
                f"{n_waiting} requests are waiting; at most {self._config.max_queued} may",
                retry_after_s=self._retry_after_s(n_waiting, now),
                metadata={"value": str(n_waiting), "bound": str(self._config.max_queued)},
            )
        if job.deadline is not None and n_waiting:
            self._check_hope(job, job.deadline - now, now)

    def note_dispatch(self, now: float) -> None:
        """A new request left the queue for a worker."""
        self._drain_rate.note(now)

    def note_servable(self, models: set[str], now: float) -> None:
        """These models have live workers of both roles now."""
        for model in models:
            self._last_servable[model] = now

    def tick(self, request: Request, now: float) -> None:
        """Time passes for a QUEUED or RESUMING request."""
        if request.due is not None and now >= request.due:
            request.due = None
            self._board.queue.push(request)
        waited_s = now - request.queued_since
        servable_at = self._last_servable.get(request.job.model, request.queued_since)
        unservable_s = now - max(servable_at, request.queued_since)
        if unservable_s > self._config.unavailable_after_s:
            self._endings.fail(
                request,
                UnavailableError(
                    f"{self._why_unservable(request.job.model)} for {unservable_s:.1f} s",
                    metadata={"model": request.job.model},
                ),
            )
        elif waited_s > self._config.unavailable_after_s and not self._could_hold(request):
            self._endings.fail(
                request,
                UnavailableError(
                    f"no pair of workers of {request.job.model}, live or not, has pages for "
                    f"{request.n_tokens + request.remaining_tokens} tokens any more",
                    metadata={"model": request.job.model},
                ),
            )
        elif waited_s > self._config.queue_timeout_s:
            self._endings.fail(
                request,
                OverloadedError(
                    f"no worker had room for {waited_s:.1f} s; at most "
                    f"{self._config.queue_timeout_s} s may be waited",
                    retry_after_s=self._retry_after_s(len(self._board.queue), now),
                ),
            )

    def _why_unservable(self, model: str) -> str:
        """What has been so, to be followed by how long."""
        members = [m for m in self._board.members if m.announce.model == model]
        live = [m for m in members if m.state is not MemberState.GONE]
        for role, takers in (
            ("prefill", [m for m in live if m.prefills]),
            ("decode", [m for m in live if m.decodes]),
        ):
            if takers and all(m.state is MemberState.DRAINING for m in takers):
                return f"all {role} workers of {model} are draining; no pair has served it"
        return f"no pair of live workers has served {model}"

    def _could_hold(self, request: Request) -> bool:
        """Whether the request fits workers that are there, whatever they do now. It did when it
        came; the largest may have gone since."""
        needed = request.n_tokens + request.remaining_tokens
        models = {model.name: model for model in self._board.members.models()}
        model = models.get(request.job.model)
        return model is not None and needed <= model.room.n_tokens

    def _check_hope(self, job: Job, left_s: float, now: float) -> None:
        """Refuse only what is far from possible: estimates are bad, and refusing is final."""
        wait_s = self._drain_rate.wait_s(self._board.queue.n_ahead(job.model, job.priority), now)
        if wait_s is not None and wait_s > self._config.hopeless_factor * left_s:
            self._board.counters["refused.deadline_hopeless"] += 1
            raise DeadlineError(
                f"the deadline is {left_s:.3f} s away; the estimated wait is {wait_s:.3f} s",
                metadata={"time_left_s": f"{left_s:.3f}", "estimated_wait_s": f"{wait_s:.3f}"},
            )

    def _retry_after_s(self, n_waiting: int, now: float) -> float:
        wait_s = self._drain_rate.wait_s(n_waiting, now)
        wait_s = UNKNOWN_WAIT_S if wait_s is None else wait_s
        return min(max(wait_s, self._config.retry_after_min_s), self._config.retry_after_max_s)
