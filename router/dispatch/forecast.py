"""Estimates from recent measurements, by model: how long a request waits, and how long its answer
takes once a worker has it."""

from __future__ import annotations

from twolane.router.dispatch.drain_rate import DrainRate
from twolane.router.dispatch.service_time import ServiceTime
from twolane.router.requests.request import Job, Request


class Forecast:
    """See the module's docstring. An estimate is None if there are too few measurements."""

    def __init__(self) -> None:
        # Written only for requests that workers had, so that clients cannot add names of models.
        self._drain: dict[str, DrainRate] = {}
        self._pace: dict[str, ServiceTime] = {}

    def __len__(self) -> int:
        """The number of models with measurements."""
        return len(self._drain.keys() | self._pace.keys())

    def note_dispatch(self, request: Request, now: float) -> None:
        """Record that a request has left the queue for the first time."""
        drain = self._drain.setdefault(request.job.model, DrainRate())
        drain.note(now, request.job.priority)

    def note_end(self, request: Request, *, is_whole: bool) -> None:
        """Record the end of an answer, whole or cut short. Requests with several attempts are
        ignored."""
        line = request.timeline
        if request.n_attempts != 1 or line.dispatched is None:
            return
        if line.first_token is None or line.last_token is None:
            return
        self._pace.setdefault(request.job.model, ServiceTime()).note(
            prompt_tokens=request.n_prompt,
            first_s=line.first_token - line.dispatched,
            n_tokens=len(request.answer.tokens),
            tokens_s=line.last_token - line.first_token,
            max_tokens=request.job.max_tokens,
            is_whole=is_whole,
            now=line.last_token,
        )

    def cost_tokens(self, job: Job) -> float:
        """The expected tokens of prompt and answer. The answer counts as `max_tokens` until it is
        known which part of that answers use."""
        pace = self._pace.get(job.model)
        return job.n_prompt + (job.max_tokens if pace is None else pace.n_likely(job.max_tokens))

    def wait_s(self, model: str, n_ahead: float, priority: int, now: float) -> float | None:
        """The expected wait in the queue behind `n_ahead` requests of that model."""
        drain = self._drain.get(model)
        if drain is None:
            return None if n_ahead else 0.0
        return drain.wait_s(n_ahead, now, priority)

    def service_s(self, model: str, n_tokens: int, max_tokens: int, now: float) -> float | None:
        """The expected time from dispatch to the end of the answer, with a margin."""
        pace = self._pace.get(model)
        return pace.service_s(n_tokens, max_tokens, now) if pace is not None else None
