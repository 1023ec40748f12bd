"""Plots of a load run: one row of panels per rate.

TTFT, cumulative | gaps between tokens, cumulative | TTFT over the time of arrival
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from benchmarks.load.record import Slo
from benchmarks.load.summary import Point, all_gaps_s

_MAX_STEPS = 4_000  # points of a curve: more cannot be seen


def draw(points: Mapping[str, Mapping[str, Point]], slo: Slo) -> Any:
    """A matplotlib figure of `points[load][target]`; the SLO is a dashed line in every panel."""
    figure = Figure(figsize=(15, 3.6 * len(points)), layout="constrained")
    axes = figure.subplots(len(points), 3, squeeze=False)
    for row, (load, by_target) in zip(axes, points.items(), strict=True):
        for name, point in by_target.items():
            records = point.records
            ttft_ms = np.array([r.ttft_s * 1e3 for r in records if r.ttft_s is not None])
            _cumulative(row[0], ttft_ms, name)
            _cumulative(row[1], all_gaps_s(records) * 1e3, name)
            _timeline(row[2], point, name)
        row[0].set(title=f"{load}: time to first token", xlabel="ms", ylabel="share of requests")
        row[1].set(title="gaps between tokens", xlabel="ms", ylabel="share of gaps")
        row[2].set(title="over time (crosses: failed)", xlabel="arrival, s", ylabel="TTFT, ms")
        row[0].axvline(slo.ttft_s * 1e3, linestyle="--", color="grey")
        row[1].axvline(slo.gap_s * 1e3, linestyle="--", color="grey")
        row[2].axhline(slo.ttft_s * 1e3, linestyle="--", color="grey")
        for panel in row[:2]:
            panel.set(xscale="log", ylim=(0, 1.01))
            panel.grid(alpha=0.3)
        for panel in row:
            panel.legend(loc="best")
    return figure


def _cumulative(panel: Any, values_ms: npt.NDArray[np.float64], name: str) -> None:
    if not len(values_ms):
        return
    shares = np.linspace(0, 1, min(_MAX_STEPS, len(values_ms) + 1))
    # A gap of zero (two tokens in one message) has no place on a log axis.
    panel.plot(np.maximum(np.quantile(values_ms, shares), 1e-2), shares, label=name)


def _timeline(panel: Any, point: Point, name: str) -> None:
    answered = [r for r in point.records if r.ttft_s is not None]
    failed = [r for r in point.records if not r.is_complete]
    times_ms = [r.ttft_s * 1e3 for r in answered if r.ttft_s is not None]
    dots = panel.scatter([r.arrival_s for r in answered], times_ms, s=6, label=name)
    color: Sequence[float] = dots.get_facecolor()[0] if len(dots.get_facecolor()) else (0, 0, 0)
    panel.scatter([r.arrival_s for r in failed], [0.0] * len(failed), marker="x", color=[color])
