"""A step in flight: where its results will be, and the event that completes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from twolane.engine.cuda.sampler import NOT_DRAWN
from twolane.engine.kernels.rows.sample import NOT_FINITE
from twolane.engine.step import Mark, RowResult, SampledToken


@dataclass(slots=True)  # made for every row of every step: frozen would take twice as long
class Outcome:
    """What is known about one row when its step is submitted."""

    row: int
    error: str = ""
    place: int | None = None  # index of its token; None: not sampled
    wants_logprob: bool = False
    top: tuple[int, int] | None = None  # (row of the tables of likeliest tokens, how many of them)


@dataclass(frozen=True, slots=True)
class TopTables:
    """The likeliest tokens of some rows, `[n, most]` on the host; valid after the event."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


class CudaStep:
    """Implements `twolane.engine.step.Step`. `latest` [2, sampled rows] int32 on the host: tokens,
    and the bits of their log-probabilities."""

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        latest: torch.Tensor,
        tops: TopTables | None,
        event: torch.cuda.Event | None,
    ) -> None:
        self._outcomes = outcomes
        self._latest = latest
        self._tops = tops
        self._event = event

    @property
    def written(self) -> Mark | None:
        return self._event

    def result(self) -> list[RowResult]:
        if self._event is not None:
            self._event.synchronize()
        tokens: list[int] = self._latest[0].tolist()
        logprobs: list[float] = self._latest[1].view(torch.float32).tolist()
        return [self._result(outcome, tokens, logprobs) for outcome in self._outcomes]

    def _result(self, outcome: Outcome, tokens: list[int], logprobs: list[float]) -> RowResult:
        if outcome.error or outcome.place is None:
            return RowResult(outcome.row, error=outcome.error)
        token = tokens[outcome.place]
        if token == NOT_FINITE:
            return RowResult(outcome.row, error=NOT_DRAWN)
        if not outcome.wants_logprob:
            return RowResult(outcome.row, (SampledToken(token),))
        return RowResult(
            outcome.row, (SampledToken(token, logprobs[outcome.place], self._top(outcome)),)
        )

    def _top(self, outcome: Outcome) -> tuple[tuple[int, float], ...]:
        if outcome.top is None or self._tops is None:
            return ()
        row, n = outcome.top
        ids: list[int] = self._tops.tokens[row, :n].tolist()
        values: list[float] = self._tops.logprobs[row, :n].tolist()
        return tuple(zip(ids, values, strict=True))
