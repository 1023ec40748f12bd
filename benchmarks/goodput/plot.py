"""Plots of a goodput measurement, everything against the rate.

    TTFT, p50 and p99  |  gaps, p99             |  highest rate served, by SLO
    held at SLO 1      |  held at SLO 2         |  …
    goodput at SLO 1   |  goodput at SLO 2      |  …

One colour per contender, references in grey; one legend for all. A cross is an aborted run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.goodput.measured import Measured
from benchmarks.goodput.reference import Mode, Reference, key
from benchmarks.goodput.tournament import Tournament
from benchmarks.load.record import Slo

_GREYS = ("0.35", "0.6", "0.75")
_COLUMNS = 3


def draw(contest: Tournament, contenders: Sequence[str], reference: Reference, title: str) -> Any:
    """A matplotlib figure."""
    slos = contest.config.slos
    columns = max(_COLUMNS, len(slos))
    figure = Figure(figsize=(5.2 * columns, 12), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(3, columns, squeeze=False)
    colors = {name: colormaps["tab10"](nth) for nth, name in enumerate(contenders)}
    greys = dict(zip(reference, _GREYS * len(reference), strict=False))
    _times(panels[0][0], contest, colors, "ttft_p50_ms", ":")
    _times(panels[0][0], contest, colors, "ttft_p99_ms", "-")
    _times(panels[0][1], contest, colors, "gap_p99_ms", "-")
    _times(panels[0][1], contest, colors, "request_gap_p99_p90_ms", ":")
    for name, mode in reference.items():
        for panel, values, style in (
            (panels[0][0], mode.ttft_p50_ms, ":"),
            (panels[0][0], mode.ttft_p99_ms, "-"),
            (panels[0][1], mode.gap_p99_ms, "-"),
        ):
            panel.plot(mode.rates_per_s, values, style, color=greys[name], marker=".")
    _limits(panels[0][0], [(slo.ttft_s, slo) for slo in slos])
    _limits(panels[0][1], [(slo.gap_s, slo) for slo in slos])
    panels[0][0].set(title="Time to first token: p99 (dotted: p50)", ylabel="ms", yscale="log")
    title = "Gaps between tokens: p99 of all\n(dotted: p90 of requests' own p99)"
    panels[0][1].set(title=title, ylabel="ms", yscale="log")
    _served(panels[0][2], contest, colors, reference, greys)
    for nth, slo in enumerate(slos):
        _held(panels[1][nth], contest, slo, colors, reference, greys)
        _goodput(panels[2][nth], contest, slo, colors, reference, greys)
    for panel in panels[0][:2]:
        panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
    for panel in [*panels[0][:2], *panels[1][: len(slos)], *panels[2][: len(slos)]]:
        panel.set(xlabel="requests/s offered", xlim=(0, None))
        panel.grid(alpha=0.3)
    for unused in [*panels[0][3:], *panels[1][len(slos) :], *panels[2][len(slos) :]]:
        unused.set_axis_off()
    bars, names = panels[0][2].get_legend_handles_labels()
    if bars:
        figure.legend(bars, names, loc="outside upper right", ncols=3)
    return figure


def _times(
    panel: Any, contest: Tournament, colors: dict[str, Any], figure: str, style: str
) -> None:
    """The mean of a rate's runs as a line, each run as a dot, or as a cross if it was aborted."""
    for name, color in colors.items():
        by_rate: dict[float, list[float]] = {}
        for run in _on_time(contest, name):
            value = run.figures[figure]
            if value is not None:
                by_rate.setdefault(run.rate_per_s, []).append(value)
                panel.plot(run.rate_per_s, value, "x" if run.halted else ".", color=color)
        rates = sorted(by_rate)
        means = [np.mean(by_rate[rate]) for rate in rates]
        panel.plot(rates, means, style, color=color)


def _held(
    panel: Any,
    contest: Tournament,
    slo: Slo,
    colors: dict[str, Any],
    reference: Reference,
    greys: dict[str, str],
) -> None:
    for name, color in colors.items():
        if not (tallies := contest.tallies(name, slo)):
            continue
        shares = np.array([tally.share for tally in tallies.values()])
        ends = np.array([tally.interval for tally in tallies.values()]).reshape(-1, 2)
        bars = np.maximum(0, np.abs(ends.T - shares))
        panel.errorbar([*tallies], shares, yerr=bars, color=color, marker="o", ms=4, capsize=3)
        for rate_per_s, tally in tallies.items():
            if tally.is_hopeless:
                panel.plot(rate_per_s, tally.share, "x", color=color, ms=10)
    _plot_reference(panel, reference, greys, slo, lambda rate, share: share)
    panel.axhline(contest.config.search.share, linestyle="--", color="black", linewidth=0.8)
    panel.set(title=f"Held: {slo}", ylabel="share of requests", ylim=(-0.02, 1.02))


def _goodput(
    panel: Any,
    contest: Tournament,
    slo: Slo,
    colors: dict[str, Any],
    reference: Reference,
    greys: dict[str, str],
) -> None:
    most = 0.0
    for name, color in colors.items():
        if not (tallies := contest.tallies(name, slo)):
            continue
        held = [rate_per_s * tally.share for rate_per_s, tally in tallies.items()]
        panel.plot([*tallies], held, color=color, marker="o", ms=4)
        most = max([most, *tallies])
    _plot_reference(panel, reference, greys, slo, lambda rate, share: rate * share)
    panel.plot([0, most], [0, most], linestyle="--", color="black", linewidth=0.8)
    panel.set(
        title=f"Goodput: {slo} (dashed: all requests hold)",
        ylabel="requests/s that hold",
        ylim=(0, None),
    )


def _served(
    panel: Any,
    contest: Tournament,
    colors: dict[str, Any],
    reference: Reference,
    greys: dict[str, str],
) -> None:
    """Bars: the mean of the rounds' results; if every rate missed, labelled as below the lowest."""
    slos = contest.config.slos
    measured = [name for name in colors if _on_time(contest, name)]
    names = [*measured, *reference]
    if not names:
        return
    width = 0.8 / len(names)
    for nth, name in enumerate(names):
        if name in colors:
            brackets = [contest.brackets(name, slo) for slo in slos]
            heights = [float(np.mean([b.low_per_s or 0.0 for b in some])) for some in brackets]
            labels = [
                f"<{some[0].high_per_s:g}" if not height and some[0].high_per_s else f"{height:.3g}"
                for height, some in zip(heights, brackets, strict=True)
            ]
        else:
            heights = [reference[name].served_per_s.get(key(slo), 0.0) for slo in slos]
            labels = [f"~{height:.3g}" if height else "" for height in heights]
        at = [group + (nth - (len(names) - 1) / 2) * width for group in range(len(slos))]
        color = colors[name] if name in colors else greys[name]
        bars = panel.bar(at, heights, width * 0.9, color=color, label=name)
        panel.bar_label(bars, labels, fontsize="small")
    panel.set_xticks(range(len(slos)), [str(slo) for slo in slos])
    panel.set(title=f"Highest rate that {contest.config.search.share:.0%} hold", ylabel="1/s")
    panel.margins(y=0.08)  # for the labels, above the bars


def _plot_reference(
    panel: Any,
    reference: Reference,
    greys: dict[str, str],
    slo: Slo,
    value: Callable[[float, float], float],
) -> None:
    for name, mode in reference.items():
        points = _points(mode, slo)
        values = [value(rate, share) for rate, share in points]
        rates = [rate for rate, _ in points]
        panel.plot(rates, values, color=greys[name], marker=".")


def _points(mode: Mode, slo: Slo) -> list[tuple[float, float]]:
    held = [(rate, mode.held_at(rate, slo)) for rate in mode.rates_per_s]
    return [(rate, share) for rate, share in held if share is not None]


def _limits(panel: Any, limits: Sequence[tuple[float, Slo]]) -> None:
    for value_s in sorted({value_s for value_s, _ in limits}):
        panel.axhline(value_s * 1e3, linestyle="--", color="black", linewidth=0.8)
        panel.annotate(
            f"SLO {value_s * 1e3:g}", (1, value_s * 1e3), xycoords=("axes fraction", "data"),
            ha="right", va="bottom", fontsize="small",
        )  # fmt: skip


def _on_time(contest: Tournament, name: str) -> list[Measured]:
    late_s = contest.config.late_s
    return [run for run in contest.runs if run.contender == name and not run.is_late(late_s)]
