"""Which waiting rows start now, and how many tokens of each row a step computes. Pure functions.

    started rows      |== chunk ==|== chunk ==|                     in turn, first
    waiting rows                              |= chunk =|= chunk|   in turn, into what is left
                      0                                         budget

While the queue is short (up to `watermark_rows`), waiting rows start at once. In a burst they wait
briefly for a fuller batch: they start when they fill the budget, or when the first has waited for
`window_s`. If started rows are being computed there is a step anyway, and no row waits for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """`window_s`: the longest time that a row waits for others although there is room for it."""

    window_s: float = 0.003
    watermark_rows: int = 4

    def __post_init__(self) -> None:
        assert self.window_s >= 0
        assert self.watermark_rows >= 0


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
    config: BatchingConfig,
) -> Start:
    """`queue` is in order of turn; `budget_tokens` is what started rows leave of the step.

    A row starts if any budget is left for it; the last one may compute only part of its prompt.
    """
    n_fit, left = 0, budget_tokens
    while n_fit < len(queue) and left > 0:
        left -= queue[n_fit].n_tokens
        n_fit += 1
    is_burst = len(queue) > config.watermark_rows
    if not n_fit or n_started or not is_burst or left <= 0:
        return Start(n_fit)
    patience_ends_s = min(row.arrived_s for row in queue) + config.window_s
    return Start(n_fit) if now >= patience_ends_s else Start(0, patience_ends_s)


def share_out(remaining: Sequence[int], budget_tokens: int) -> list[int]:
    """How many tokens each started row computes in this step: in order, while budget is left."""
    shares = []
    for n_tokens in remaining:
        shares.append(min(n_tokens, budget_tokens))
        budget_tokens -= shares[-1]
    return shares
