"""Which waiting rows start now, and how many tokens of each row a step computes. Pure functions.

    started rows      |== chunk ==|== chunk ==|                     in turn, first
    waiting rows                              |= chunk =|= chunk|   in turn, into what is left
                      0                                         budget

Waiting rows start at once, unless it pays to wait briefly for a fuller batch: `Patience`. Then they
start when they fill the budget, or when patience ends. If started rows are being computed there is
a step anyway, and no row waits for others.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """`window_s`: the longest time that a row of a burst waits for others although there is room
    for it; a burst are more than `watermark_rows`; 0: no row waits. None: both are learnt, within
    `most_window_s` and `most_rows` (`twolane.prefill_worker.learnt_batching`)."""

    window_s: float | None = 0.0
    watermark_rows: int = 4
    most_window_s: float = 0.010
    most_rows: int = 32

    def __post_init__(self) -> None:
        assert self.window_s is None or self.window_s >= 0
        assert self.watermark_rows >= 0
        assert self.most_window_s >= 0
        assert self.most_rows >= 0


@dataclass(frozen=True, slots=True)
class Patience:
    """More than `above_rows` rows, and at most `most_rows`, wait until the first of them has waited
    for `window_s`, or none has come for `quiet_s`."""

    window_s: float
    above_rows: int = 0
    most_rows: int = sys.maxsize
    quiet_s: float = math.inf

    def covers(self, n_rows: int) -> bool:
        return self.window_s > 0 and self.above_rows < n_rows <= self.most_rows


@dataclass(frozen=True, slots=True)
class Waiting:
    """One queued row: when it arrived, and how many tokens it has to compute."""

    arrived_s: float
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Start:
    """How many rows from the head of the queue may start; if none, when to check again."""

    n_rows: int
    look_again_s: float | None = None


def who_starts(
    queue: Sequence[Waiting],
    *,
    budget_tokens: int,
    n_started: int,
    now: float,
    patience: Patience,
) -> Start:
    """`queue` is in order of turn; `budget_tokens` is what started rows leave of the step.

    A row starts if any budget is left for it; the last one may compute only part of its prompt.
    """
    n_fit, left = 0, budget_tokens
    while n_fit < len(queue) and left > 0:
        left -= queue[n_fit].n_tokens
        n_fit += 1
    if not n_fit or n_started or not patience.covers(len(queue)) or left <= 0:
        return Start(n_fit)
    arrived_s = [row.arrived_s for row in queue]
    patience_ends_s = min(min(arrived_s) + patience.window_s, max(arrived_s) + patience.quiet_s)
    return Start(n_fit) if now >= patience_ends_s else Start(0, patience_ends_s)


def share_out(remaining: Sequence[int], budget_tokens: int) -> list[int]:
    """How many tokens each started row computes in this step: in order, while budget is left."""
    shares = []
    for n_tokens in remaining:
        shares.append(min(n_tokens, budget_tokens))
        budget_tokens -= shares[-1]
    return shares
