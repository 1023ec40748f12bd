"""Whether prefill's learnt waiting for fuller steps beats a fixed window, on bursty arrivals.

`python -m benchmarks.virtual.batching` plays requests through the real router and workers under
virtual time, one prefill and one decode worker, whose steps take what was measured of an H200. The
learnt window's constants were chosen on seed 1. Writes `prefill_batching.json` and `.png`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.results import save
from twolane.deploy.controller.capacity import StepCost
from twolane.deploy.controller.priors import Hardware, hardware
from twolane.deploy.simulator.requests import poisson
from twolane.deploy.simulator.scenarios import scenario
from twolane.deploy.virtual_cluster.replay import Request, Seen, play
from twolane.deploy.virtual_cluster.timed import shape
from twolane.prefill_worker.batching import BatchingConfig
from twolane.prefill_worker.config import PrefillConfig

FloatArray = npt.NDArray[np.float64]
N_ANSWER = 2  # tokens: prefill is what is compared
CONTENDERS: Mapping[str, BatchingConfig] = {
    "fixed": BatchingConfig(window_s=0.003, watermark_rows=4),
    "no window": BatchingConfig(window_s=0.0),
    "learnt": BatchingConfig(window_s=None),
}


def _requests(
    arrivals_s: FloatArray, low: int, high: int, rng: np.random.Generator
) -> list[Request]:
    """Prompts of `low` to `high` tokens, of which no two begin alike."""
    return [
        Request(float(at_s), rng.integers(0, 65_536, rng.integers(low, high)).tolist(), N_ANSWER)
        for at_s in arrivals_s
    ]


def _poisson(rates: Sequence[float], low: int, high: int) -> Callable[[int], list[Request]]:
    """Half a second of each rate."""

    def make(seed: int) -> list[Request]:
        rng = np.random.default_rng(seed)
        arrivals_s, _ = poisson(np.array(rates), 0.5, rng)
        return _requests(arrivals_s, low, high, rng)

    return make


def _groups(
    most: int, within_s: float, every_s: float, low: int, high: int
) -> Callable[[int], list[Request]]:
    """100 groups of 1 to `most` prompts that come within so long."""

    def make(seed: int) -> list[Request]:
        rng = np.random.default_rng(seed)
        begins_s = np.cumsum(rng.exponential(every_s, 100))
        arrivals_s = np.repeat(begins_s, rng.integers(1, most, 100, endpoint=True))
        arrivals_s = np.sort(arrivals_s + rng.random(len(arrivals_s)) * within_s)
        return _requests(arrivals_s, low, high, rng)

    return make


def _azure(name: str, factor: int, share: float, span_s: float) -> Callable[[int], list[Request]]:
    """The busiest `span_s` of a share of `factor` copies of Azure's trace."""

    def make(seed: int) -> list[Request]:
        rng = np.random.default_rng(seed)
        trace = scenario(f"azure-{name}", seed).requests
        kept = rng.random(len(trace)) < share / factor
        arrivals_s, lengths = trace.arrivals_s[kept], trace.prompt_tokens[kept]
        counts = np.searchsorted(arrivals_s, arrivals_s + span_s) - np.arange(len(arrivals_s))
        first = int(counts.argmax())
        last = first + int(counts[first])
        return [
            Request(
                float(arrivals_s[nth] - arrivals_s[first]),
                rng.integers(0, 65_536, int(lengths[nth])).tolist(),
                N_ANSWER,
            )
            for nth in range(first, last)
        ]

    return make


H200 = hardware("h200")
COSTLY = replace(H200, prefill=StepCost(0.020, H200.prefill.each_s, H200.prefill.more_s))
WORKLOADS: Mapping[str, tuple[Hardware, Callable[[int], list[Request]]]] = {
    "1,024 tokens, 20/s": (H200, _poisson([20.0] * 20, 819, 1229)),
    "512 tokens, 40/s, 95/s for 3 s": (
        H200, _poisson([40.0] * 4 + [95.0] * 6 + [40.0] * 6, 410, 614),
    ),
    "64 tokens, 250/s": (H200, _poisson([250.0] * 5, 51, 77)),
    "64 tokens, 700/s (overload)": (H200, _poisson([700.0] * 2, 51, 77)),
    "Azure conversations x 3": (H200, _azure("conv", 6, 3.0, 15.0)),
    "Azure code x 1.5": (H200, _azure("code", 8, 1.5, 30.0)),
    "1 to 16 of 80 tokens at once": (H200, _groups(16, 0.0, 0.06, 32, 128)),
    "1 to 16 of 80 tokens in 2 ms": (H200, _groups(16, 0.002, 0.06, 32, 128)),
    "1 to 8 of 20 tokens at once": (H200, _groups(8, 0.0, 0.03, 8, 32)),
    "1 to 8 of 20 tokens in 1 ms": (H200, _groups(8, 0.001, 0.03, 8, 32)),
    "the same in 4 ms": (H200, _groups(8, 0.004, 0.03, 8, 32)),
    "steps of 20 ms, 1 to 8 in 10 ms": (COSTLY, _groups(8, 0.010, 0.15, 32, 128)),
    "steps of 20 ms, 1 to 16 in 4 ms": (COSTLY, _groups(16, 0.004, 0.15, 8, 64)),
}  # fmt: skip


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, default=(11,), show_default=True)
@click.option("--only", multiple=True, metavar="WORKLOAD", help="Without saving.")
def main(*, seeds: tuple[int, ...], only: tuple[str, ...]) -> None:
    """Play every workload with every contender."""
    figures: dict[str, Any] = {}
    for name, (made, make) in WORKLOADS.items():
        if only and name not in only:
            continue
        seen: dict[str, list[list[Seen]]] = {contender: [] for contender in CONTENDERS}
        begun = time.perf_counter()
        for seed in seeds:
            requests = make(seed)
            for contender, batching in CONTENDERS.items():
                cluster = shape(made, ("p", "d"), prefill=PrefillConfig(batching=batching))
                seen[contender].append(play(requests, cluster))
        figures[name] = {contender: _figures(runs) for contender, runs in seen.items()}
        for contender, found in figures[name].items():
            change = found["ttft_p90_ms"] / figures[name]["fixed"]["ttft_p90_ms"] - 1
            click.echo(f"{name:34} {contender:10} {change:+7.1%}  {found}")
        click.echo(f"  took {time.perf_counter() - begun:.0f} s")
    if not only:
        save("prefill_batching", {"seeds": list(seeds), "workloads": figures}, plot=_draw(figures))


def _figures(runs: Sequence[Sequence[Seen]]) -> dict[str, float]:
    """Of all seeds' requests together."""
    ttft_ms = 1e3 * np.array([one.ttft_s for run in runs for one in run])
    took_s = sum(max(one.end_s for one in run) - run[0].at_s for run in runs)
    return {
        "requests": len(ttft_ms),
        "ttft_mean_ms": round(float(ttft_ms.mean()), 2),
        "ttft_p50_ms": round(float(np.quantile(ttft_ms, 0.5)), 2),
        "ttft_p90_ms": round(float(np.quantile(ttft_ms, 0.9)), 2),
        "ttft_p99_ms": round(float(np.quantile(ttft_ms, 0.99)), 2),
        "requests_per_s": round(len(ttft_ms) / took_s, 2),
    }


def _draw(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Any:
    """Median and p90 of the time to the first token, in parts of the fixed window's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    figure.suptitle("Time to first token, by how prefill waits for fuller steps")
    names = list(figures)
    for panel, key in zip(figure.subplots(1, 2, sharey=True), ("p50", "p90"), strict=True):
        for nth, contender in enumerate(CONTENDERS):
            parts = [
                figures[name][contender][f"ttft_{key}_ms"]
                / figures[name]["fixed"][f"ttft_{key}_ms"]
                for name in names
            ]
            places = [place + (nth - 1) * 0.25 for place in range(len(names))]
            panel.barh(places, parts, height=0.25, label=contender)
        panel.set(
            title=f"{key}, of the fixed window's", yticks=range(len(names)), yticklabels=names
        )
        panel.axvline(0.9, linestyle="--", color="black", linewidth=0.8)
        panel.grid(alpha=0.3, axis="x")
    panel.invert_yaxis()
    panel.legend(fontsize="small", loc="best")
    return figure


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.virtual.batching")
