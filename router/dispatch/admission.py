"""Decides which requests may wait, and for how long. A refusal is immediate and says when to
retry."""

from __future__ import annotations

from twolane.errors import (
    DeadlineError,
    OverloadedError,
    QuotaError,
    TwolaneError,
    UnavailableError,
)
from twolane.refusals import Refusal
from twolane.router.config import AdmissionConfig
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.members.member import MemberState
from twolane.router.requests.request import Job, Request, RequestState
from twolane.router.tenants.accounts import REFUSALS, Account

UNKNOWN_WAIT_S = 1.0  # for RetryInfo, before the queue's rate is known
MAX_PRIORITY = 1 << 31
LOOK_S = 0.5  # how often to check that some worker could still hold a request
# Of the time to the first token that should be held: the rest is for the prefill worker's backlog
# and the prompt itself.
WAIT_SHARE = 0.4


class Admission:
    """Admits requests to the waiting queue, and ends those that have waited too long."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings
        self._last_servable: dict[str, float] = {}
        self._servable_since: dict[str, float] = {}  # of the models that are servable now

    @property
    def _config(self) -> AdmissionConfig:
        """The one that holds now: operators change it."""
        return self._board.config.admission

    def check(self, job: Job, now: float) -> None:
        """Raise `DeadlineError` or `OverloadedError` if the job may not be queued. If the queue is
        full and the job may, another request is evicted: see `WaitingQueue.last`."""
        left_s = None if job.deadline is None else job.deadline - now
        lengths = job.n_prompt, job.max_tokens
        self.check_room(job.model, job.priority, job.tenant, left_s, now, *lengths)
        queue = self._board.queue
        if len(queue) >= self._config.max_queued:
            last = queue.last()
            assert last is not None
            self._count(Refusal.EVICTED)
            is_lower = last.job.priority < job.priority
            to = "one of a higher priority" if is_lower else "a tenant with fewer requests here"
            why = f"it gave its place to {to}: "
            self._endings.fail(last, self._full(len(queue), last, now, why))

    def check_quotas(self, tenant: str, n_tokens: float, now: float) -> Account:
        """Raise `QuotaError` if the tenant may not have one more request of `n_tokens`."""
        account = self._board.accounts.of(tenant, now)
        try:
            account.check(n_tokens, now)
        except QuotaError as error:
            self._count(REFUSALS[error.metadata["quota"]])
            raise
        return account

    def check_room(
        self,
        model: str,
        priority: int,
        tenant: str,
        left_s: float | None,
        now: float,
        n_prompt: int = 0,
        max_tokens: int = 0,
    ) -> None:
        """The checks that need no prompt, also made before the prompt is parsed. An empty model is
        the only one, and lengths that are not known yet are 0. Raises as `check`."""
        if left_s is not None and left_s <= 0:
            self._count(Refusal.DEADLINE)
            raise DeadlineError(
                "the deadline had passed when the request arrived",
                metadata={"time_left_s": f"{left_s:.3f}"},
            )
        queue = self._board.queue
        n_waiting = len(queue)
        if not n_waiting:
            return
        if n_waiting >= self._config.max_queued:
            last = queue.last()
            if last is None or not queue.gives_way(last, priority, tenant):
                self._count(Refusal.QUEUE_FULL)
                raise self._full(n_waiting, None, now)
        models = queue.models()
        if not model and len(models) == 1:
            model = models[0]
        n_ahead, outlook = queue.n_ahead(model, priority, tenant), self._board.outlook
        wait_s = outlook.wait_s(model, n_ahead, priority, now) or 0.0
        if wait_s > self._config.max_wait_s:
            self._count(Refusal.QUEUE_LONG)
            raise self._too_long(wait_s)
        if left_s is None:
            return
        service_s = outlook.service_s(model, n_prompt, max_tokens, now) or 0.0
        if (wait_s + service_s) * self._config.hopeless_factor > left_s:
            self._count(Refusal.DEADLINE_HOPELESS)
            raise self._hopeless(left_s, wait_s, service_s)

    def note_dispatch(self, request: Request, now: float) -> None:
        """Record that a new request has left the queue for a worker."""
        self._board.outlook.note_dispatch(request, now)

    def note_servable(self, models: set[str], now: float) -> None:
        """Record the models that have live workers of both roles now."""
        self._servable_since = {model: self._servable_since.get(model, now) for model in models}
        for model in models:
            self._last_servable[model] = now

    def excuse(self) -> None:
        """This router comes back from a pause, in which it served no request."""
        self._servable_since.clear()  # guard: own pause

    def tick(self, request: Request, now: float) -> None:
        """Check the time limits of a QUEUED or RESUMING request."""
        if request.due is not None and now >= request.due:
            request.due = None
            self._board.queue.push(request)
        late = self.late_error(request, now)
        if late is not None:
            self._endings.fail(request, late)
            return
        overtaken = self._overtaken_error(request, now)
        if overtaken is not None:
            self._endings.fail(request, overtaken)
            return
        if self._defers(request, now):
            return
        waited_s = now - request.queued_since
        servable_at = self._last_servable.get(request.job.model, request.queued_since)
        unservable_s = now - max(servable_at, request.queued_since)
        patience_s = self._patience_s(request)
        if unservable_s > patience_s:
            self._endings.fail(
                request,
                UnavailableError(
                    f"{self._why_unservable(request.job.model)} for {unservable_s:.1f} s",
                    metadata={"model": request.job.model},
                ),
            )
        elif waited_s > patience_s and not self._could_hold(request):
            self._endings.fail(
                request,
                UnavailableError(
                    f"no pair of workers of {request.job.model}, live or not, has pages for "
                    f"{request.n_tokens + request.remaining_tokens} tokens any more",
                    metadata={"model": request.job.model},
                ),
            )
        elif waited_s > max(self._config.queue_timeout_s, patience_s if unservable_s else 0.0):
            self._endings.fail(
                request,
                OverloadedError(
                    f"no worker had room for {waited_s:.1f} s; at most "
                    f"{self._config.queue_timeout_s} s may be waited",
                    retry_after_s=self._retry_after_s(
                        request.job.model, len(self._board.queue), now
                    ),
                ),
            )

    def _patience_s(self, request: Request) -> float:
        """How long the request waits while no workers can serve it. If workers have served it
        before, their successors are probably starting."""
        config = self._config
        if self._board.wakes():
            return config.cold_start_s
        lost_workers = request.n_attempts > 0
        return config.lost_workers_wait_s if lost_workers else config.unavailable_after_s

    def next_look(self, request: Request, now: float) -> float:
        """The next time at which `tick` may have something to do for a waiting request. Whether any
        workers could hold it is checked every `LOOK_S`."""
        often = min(LOOK_S, self._config.unavailable_after_s)
        due = min(now + often, request.queued_since + self._config.queue_timeout_s)
        late_at = self._late_at(request, now)
        if late_at is not None:
            due = min(due, late_at)
        in_time_until = self._in_time_until(request)
        if in_time_until is not None and in_time_until > now:
            due = min(due, in_time_until)
        return due if request.due is None else min(due, request.due)

    def _in_time_until(self, request: Request) -> float | None:
        """Until when a waiting request can probably still have its first token in time; then it
        lets those go first that can. None where no time to the first token is to be held, and for
        resumed requests, which keep their place."""
        ttft_s = self._board.slo_ttft_s()
        if ttft_s is None or request.state is not RequestState.QUEUED:  # guard: resumed place
            return None
        return request.queued_since + WAIT_SHARE * ttft_s

    def _defers(self, request: Request, now: float) -> bool:
        """Defer a request that cannot be in time any more. True if that has ended it: its wait had
        been estimated by its place, but others go first now. Time in which no workers could serve
        it does not count."""
        in_time_until, queue = self._in_time_until(request), self._board.queue
        if in_time_until is None or now < in_time_until:
            if request.state is RequestState.QUEUED:
                queue.defer(request, is_deferred=False)  # the SLO is not told any more
            return False
        is_passed = queue.defer(request, is_deferred=True)  # guard: waits for workers alone
        since = self._servable_since.get(request.job.model, now)  # guard: cold start
        waited_s = now - max(since, request.queued_since)
        if not is_passed or waited_s < self._config.max_wait_s:  # guard: deferred without end
            return False
        self._count(Refusal.DEFERRED)
        bound = f"{self._config.max_wait_s:g}"
        self._endings.fail(
            request,
            OverloadedError(
                f"it has waited for {waited_s:.1f} s, as those that can be in time go first; at "
                f"most {bound} s may be waited",
                retry_after_s=self._bounded_retry_s(waited_s),
                metadata={"value": f"{waited_s:.1f}", "bound": bound},
            ),
        )
        return True

    def _why_unservable(self, model: str) -> str:
        """Why no worker serves the model, for a text that continues with the duration."""
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
        """Whether the request fits present workers, whatever their load. It did when it arrived,
        but the largest workers may be gone since."""
        needed = request.n_tokens + request.remaining_tokens
        models = {model.name: model for model in self._board.members.models()}
        model = models.get(request.job.model)
        return model is not None and needed <= model.room.n_tokens

    def late_error(self, request: Request, now: float) -> DeadlineError | None:
        """The error of a new request that would miss its deadline, according to recent service
        times: it gets no work while others wait. None if it may meet it."""
        late_at = self._late_at(request, now)
        if late_at is None or now < late_at:
            return None
        assert request.job.deadline is not None
        left_s, service_s = request.job.deadline - now, request.job.deadline - late_at
        n_tokens = len(request.answer.tokens)
        return DeadlineError(
            f"the deadline is {left_s:.3f} s away; the answer would take an estimated "
            f"{service_s:.3f} s",
            metadata={
                "time_left_s": f"{left_s:.3f}",
                "estimated_service_s": f"{service_s:.3f}",
                "output_tokens": str(n_tokens),
            },
        )

    def _overtaken_error(self, request: Request, now: float) -> TwolaneError | None:
        """The error of a waiting request that would be refused if it arrived now, because requests
        of higher priorities have arrived since. It is refused as soon as that is known."""
        job = request.job
        n_higher = self._board.queue.n_above(job.model, job.priority)
        if request.state is not RequestState.QUEUED or not n_higher:
            return None
        wait_s = self._board.outlook.wait_s(job.model, n_higher, job.priority, now)
        if wait_s is None:
            return None
        waited_s = now - request.queued_since
        why = f"{n_higher} of higher priorities go first now: "
        error: TwolaneError
        if job.deadline is not None and now + wait_s > job.deadline:
            error = self._hopeless(job.deadline - now, wait_s, 0.0, why)
        elif waited_s + wait_s > self._config.max_wait_s:
            error = self._too_long(waited_s + wait_s, why)
        else:
            return None
        self._count(Refusal.OVERTAKEN)
        return error

    def _late_at(self, request: Request, now: float) -> float | None:
        """The latest time at which a worker must get it to meet its deadline, or None if unknown.
        Also None for the only waiting request, which is tried anyway: service times measured under
        an earlier load say little."""
        deadline = request.job.deadline
        is_alone = len(self._board.queue) < 2
        if deadline is None or is_alone or request.state is not RequestState.QUEUED:
            return None
        service_s = self._board.outlook.service_s(
            request.job.model, request.n_tokens, request.remaining_tokens, now
        )
        return None if service_s is None else deadline - self._config.hopeless_factor * service_s

    def _too_long(self, wait_s: float, why: str = "") -> OverloadedError:
        bound = f"{self._config.max_wait_s:g}"
        return OverloadedError(
            f"{why}the estimated wait is {wait_s:.1f} s; at most {bound} s may be waited",
            retry_after_s=self._bounded_retry_s(wait_s),
            metadata={"value": f"{wait_s:.1f}", "bound": bound},
        )

    def _hopeless(
        self, left_s: float, wait_s: float, service_s: float, why: str = ""
    ) -> DeadlineError:
        return DeadlineError(
            f"{why}the deadline is {left_s:.3f} s away; the estimated wait is {wait_s:.3f} s"
            + (f", and the answer takes {service_s:.3f} s more" if service_s else ""),
            metadata={
                "time_left_s": f"{left_s:.3f}",
                "estimated_wait_s": f"{wait_s:.3f}",
                "estimated_service_s": f"{service_s:.3f}",
            },
        )

    def _count(self, refusal: Refusal) -> None:
        self._board.counters[f"refused.{refusal}"] += 1

    def _full(
        self, n_waiting: int, evicted: Request | None, now: float, why: str = ""
    ) -> OverloadedError:
        model = evicted.job.model if evicted is not None else ""
        return OverloadedError(
            f"{why}{n_waiting} requests are waiting; at most {self._config.max_queued} may",
            retry_after_s=self._retry_after_s(model, n_waiting, now),
            metadata={"value": str(n_waiting), "bound": str(self._config.max_queued)},
        )

    def _retry_after_s(self, model: str, n_waiting: int, now: float) -> float:
        models = self._board.queue.models()
        model = model or (models[0] if models else "")
        wait_s = self._board.outlook.wait_s(model, n_waiting, MAX_PRIORITY, now)
        return self._bounded_retry_s(UNKNOWN_WAIT_S if wait_s is None else wait_s)

    def _bounded_retry_s(self, wait_s: float) -> float:
        return min(max(wait_s, self._config.retry_after_min_s), self._config.retry_after_max_s)
