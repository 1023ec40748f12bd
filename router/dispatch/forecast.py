"""What a request has to expect, by what was measured lately: how long it waits, how long its answer
takes once a worker has it. By model."""

from __future__ import annotations

from twolane.router.dispatch.drain_rate import DrainRate
from twolane.router.dispatch.service_time import ServiceTime
from twolane.router.requests.request import Job, Request


class Forecast:
    """See the module's docstring. None is: not enough was seen."""

    def __init__(self) -> None:
        # written for requests that workers had: what clients ask about is no reason to keep a name
        self._drain: dict[str, DrainRate] = {}
        self._pace: dict[str, ServiceTime] = {}

    def __len__(self) -> int:
        """Models that it knows something of."""
        return len(self._drain.keys() | self._pace.keys())

    def note_dispatch(self, request: Request, now: float) -> None:
        """It has left the queue for a worker, for the first time."""
        drain = self._drain.setdefault(request.job.model, DrainRate())
        drain.note(now, request.job.priority)

    def note_end(self, request: Request, *, is_whole: bool) -> None:
        """Its answer is over, or what there is of it. More than one attempt tells nothing."""
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
        """What a request will probably have, of prompt and answer: its whole `max_tokens`, as long
        as it is not known how much of them answers use."""
        pace = self._pace.get(job.model)
        return job.n_prompt + (job.max_tokens if pace is None else pace.n_likely(job.max_tokens))

    def wait_s(self, model: str, n_ahead: float, priority: int, now: float) -> float | None:
        """In the queue, behind so many of that model."""
        return self._drain.get(model, DrainRate()).wait_s(n_ahead, now, priority)

    def service_s(self, model: str, n_tokens: int, max_tokens: int, now: float) -> float | None:
        """From a worker's taking it to the likely end of the answer, with a margin."""
        pace = self._pace.get(model)
        return pace.service_s(n_tokens, max_tokens, now) if pace is not None else None
