"""What a request has to expect, by what was measured lately: how long it waits, how long its answer
takes once a worker has it. By model."""

from __future__ import annotations

from collections import defaultdict

from router.drain_rate import DrainRate
from router.pace import Pace
from router.request import Request


class Outlook:
    """See the module's docstring. None is: not enough was seen."""

    def __init__(self) -> None:
        self._drain: defaultdict[str, DrainRate] = defaultdict(DrainRate)
        self._pace: defaultdict[str, Pace] = defaultdict(Pace)

    def note_dispatch(self, request: Request, now: float) -> None:
        """It has left the queue for a worker, for the first time."""
        self._drain[request.job.model].note(now, request.job.priority)

    def note_end(self, request: Request, *, is_whole: bool) -> None:
        """Its answer is over, or what there is of it. More than one attempt tells nothing."""
        line = request.timeline
        if request.n_attempts != 1 or line.dispatched is None:
            return
        if line.first_token is None or line.last_token is None:
            return
        self._pace[request.job.model].note(
            prompt_tokens=request.n_prompt,
            first_s=line.first_token - line.dispatched,
            n_tokens=len(request.answer.tokens),
            tokens_s=line.last_token - line.first_token,
            max_tokens=request.job.max_tokens,
            is_whole=is_whole,
            now=line.last_token,
        )

    def wait_s(self, model: str, n_ahead: int, priority: int, now: float) -> float | None:
        """In the queue, behind so many of that model."""
        return self._drain[model].wait_s(n_ahead, now, priority)

    def service_s(self, model: str, n_tokens: int, max_tokens: int, now: float) -> float | None:
        """From a worker's taking it to the likely end of the answer, with a margin."""
        return self._pace[model].service_s(n_tokens, max_tokens, now)
