"""Plots of simulations and of plans. Needs matplotlib, of the extra `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twolane.deploy.simulator.cluster import Slo
from twolane.deploy.simulator.experiment import Run
from twolane.deploy.simulator.planning import Outcome, Plan


def draw_runs(title: str, runs: Sequence[Run], budget: int) -> Any:
    """A matplotlib figure: workers over time for the law, GPUs of all, misses against GPU-hours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    figure.suptitle(title)
    sizes, gpus, trade = figure.subplots(3, 1)
    law = runs[0]
    hours = [size[0] / 3600 for size in law.tally.sizes]
    sizes.step(hours, [size[1] for size in law.tally.sizes], label="prefill workers")
    sizes.step(hours, [size[2] for size in law.tally.sizes], label="decode workers")
    sizes.set(title=f"{law.contender}: workers that serve", xlabel="hours", ylim=(0, None))
    for one in runs:
        gpus.step(
            [size[0] / 3600 for size in one.tally.sizes],
            [size[3] for size in one.tally.sizes],
            label=one.contender,
            linewidth=2 if one is law else 0.8,
        )
        trade.plot(one.gpu_hours, 100 * one.tally.missed_share, "o", label=one.contender)
        trade.annotate(one.contender, (one.gpu_hours, 100 * one.tally.missed_share))
    gpus.axhline(budget, linestyle="--", color="black", linewidth=0.8)
    gpus.set(title="GPUs held, in any state", xlabel="hours", ylim=(0, None))
    trade.set(title="What it costs and what it misses", xlabel="GPU-hours",
              ylabel="requests that missed the SLO, %", ylim=(0, None))  # fmt: skip
    for panel in (sizes, gpus):
        panel.legend(fontsize="small", loc="best")
    for panel in (sizes, gpus, trade):
        panel.grid(alpha=0.3)
    return figure


def draw_plan(title: str, plan: Plan, slo: Slo, share: float) -> Any:
    """A matplotlib figure: the best share of requests that hold the SLO, by number of GPUs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panel = figure.subplots()
    for name, is_colocated in (("split", False), ("colocated", True)):
        best: dict[int, Outcome] = {}
        for outcome in plan.tried:
            gpus = outcome.sizes.gpus
            if bool(outcome.sizes.colocated) is is_colocated and (
                gpus not in best or outcome.held > best[gpus].held
            ):
                best[gpus] = outcome
        counts = sorted(best)
        panel.plot(counts, [best[n].held for n in counts], marker="o", label=name)
        for n in counts:
            panel.annotate(str(best[n].sizes), (n, best[n].held), fontsize="x-small")
    panel.axhline(share, linestyle="--", color="black", linewidth=0.8)
    panel.set(
        title=title,
        xlabel="GPUs",
        ylabel=f"requests within {slo.ttft_s * 1e3:g} ms / {slo.gap_s * 1e3:g} ms",
        ylim=(0, 1.05),
    )
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(alpha=0.3)
    panel.legend(loc="best")
    return figure
