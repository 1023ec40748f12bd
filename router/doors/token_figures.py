"""Metrics that every token of every answer changes: counted in plain numbers, exported at a scrape.

A prometheus_client histogram takes a lock and iterates over its buckets at each observation, which
is a tenth of a token's cost at a router.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class _OfModel:
    __slots__ = ("counts", "n_tokens", "sum_s")

    def __init__(self, n_buckets: int) -> None:
        self.counts = [0] * n_buckets
        self.n_tokens = 0
        self.sum_s = 0.0


class TokenFigures:
    """By model: the number of tokens, and a histogram of the gaps between them with the bounds
    `bounds_s`."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._of: dict[str, _OfModel] = {}

    def token(self, model: str, gap_s: float | None) -> None:
        """Count a token. `gap_s` is None for the first of an answer."""
        figures = self._of.get(model)
        if figures is None:
            figures = self._of[model] = _OfModel(len(self._bounds_s) + 1)
        figures.n_tokens += 1
        if gap_s is not None:
            figures.counts[bisect_left(self._bounds_s, gap_s)] += 1
            figures.sum_s += gap_s

    def collect(self) -> Iterable[Metric]:
        gaps = HistogramMetricFamily(
            "twolane_router_gap_seconds",
            "Time between two tokens of an answer, at the door",
            labels=("model",),
        )
        tokens = CounterMetricFamily(
            "twolane_router_generated_tokens", "Tokens of answers, at the door", labels=("model",)
        )
        names = [*map(str, self._bounds_s), "+Inf"]
        for model, figures in self._of.items():
            buckets = zip(names, accumulate(figures.counts), strict=True)
            gaps.add_metric((model,), list(buckets), figures.sum_s)
            tokens.add_metric((model,), figures.n_tokens)
        yield gaps
        yield tokens
