"""Whether short or cached prompts should be computed where they are decoded.

`python -m benchmarks.virtual.beside_rows` plays Azure's arrivals and lengths through the real
router and workers under virtual time, with steps that take what was measured of an H200. The traces
have no text, so prefixes are made up: of conversations, whose next prompt begins with all that was
said, and of system prompts that many share. One prefill worker stands beside one decode worker, or
beside one with both roles, which computes what costs its rows so much time together. Writes
`beside_rows.json` and `.png`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from benchmarks.results import save
from twolane.deploy.controller.priors import hardware
from twolane.deploy.simulator.scenarios import scenario
from twolane.deploy.virtual_cluster.replay import Request, Seen, play
from twolane.deploy.virtual_cluster.timed import ANSWER_TOKEN, shape
from twolane.router.config import AdmissionConfig

H200 = hardware("h200")
THINK_S = 5.0  # from an answer's likely end to the next prompt
LONGEST_ANSWER = 150
CONTENDERS: Mapping[str, tuple[tuple[str, str], AdmissionConfig]] = {
    "split": (("p", "d"), AdmissionConfig()),
    "both roles, any prompt": (("p", "pd"), AdmissionConfig(beside_rows_s=None)),
    "both roles, 10 ms": (("p", "pd"), AdmissionConfig(beside_rows_s=0.010)),
    "both roles, 30 ms": (("p", "pd"), AdmissionConfig(beside_rows_s=0.030)),
    "both roles, 300 ms": (("p", "pd"), AdmissionConfig(beside_rows_s=0.300)),
}


@dataclass(slots=True)
class _Talk:
    """One conversation: all that was said, and when its next prompt may come."""

    said: list[int]
    next_s: float


def with_prefixes(
    name: str, factor: int, per_s: float, n: int, follows: float, seed: int
) -> list[Request]:
    """`n` requests of a trace, at `per_s` on average. The share `follows` of them continue a
    conversation, if one is short enough; half of the others begin with one of 20 system prompts."""
    trace = scenario(f"azure-{name}", seed).requests
    dice = random.Random(seed)
    first = dice.randrange(len(trace) - n)
    arrivals_s = trace.arrivals_s[first : first + n] - trace.arrivals_s[first]
    arrivals_s = arrivals_s * (n / per_s) / arrivals_s[-1]
    systems = [_tokens(dice, dice.choice((128, 256, 512, 1024))) for _ in range(20)]
    talks: list[_Talk] = []
    requests = []
    for nth in range(n):
        at_s, length = float(arrivals_s[nth]), int(trace.prompt_tokens[first + nth])
        n_answer = int(trace.output_tokens[first + nth].clip(2, LONGEST_ANSWER))
        ready = [talk for talk in talks if talk.next_s <= at_s and len(talk.said) < length - 8]
        if ready and dice.random() < follows:
            talk = max(ready, key=lambda one: len(one.said))
        else:
            talk = _Talk([], 0.0)
            talks.append(talk)
            system = dice.choice(systems)
            if len(system) < length and dice.random() < 0.5:
                talk.said += system
        talk.said += _tokens(dice, length - len(talk.said))
        requests.append(Request(at_s, list(talk.said), n_answer))
        talk.said += [ANSWER_TOKEN] * n_answer
        talk.next_s = at_s + 0.012 * n_answer + THINK_S
    return requests


def _tokens(dice: random.Random, n: int) -> list[int]:
    return [dice.randrange(8, 65_536) for _ in range(n)]


WORKLOADS = {  # trace, copies of it, requests a second, requests, share that continues
    "conversations, 60 % continue": ("conv", 6, 36.0, 400, 0.6),
    "conversations, none continue": ("conv", 6, 25.0, 300, 0.0),
    "code, 60 % continue": ("code", 8, 12.0, 250, 0.6),
    "code, none continue": ("code", 8, 8.0, 250, 0.0),
}


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, default=(11, 12), show_default=True)
@click.option("--only", multiple=True, metavar="WORKLOAD", help="Without saving.")
def main(*, seeds: tuple[int, ...], only: tuple[str, ...]) -> None:
    """Play every workload with every contender."""
    figures: dict[str, Any] = {}
    for name, made in WORKLOADS.items():
        if only and name not in only:
            continue
        requests = [with_prefixes(*made, seed) for seed in seeds]
        figures[name] = {}
        for contender, (roles, admission) in CONTENDERS.items():
            begun = time.perf_counter()
            cluster = shape(H200, roles, admission=admission)
            found = _figures([play(each, cluster) for each in requests])
            figures[name][contender] = found
            change = found["ttft_p90_ms"] / figures[name]["split"]["ttft_p90_ms"] - 1
            took_s = time.perf_counter() - begun
            click.echo(f"{name:30} {contender:24} {change:+7.1%}  {found}  took {took_s:.0f} s")
    if not only:
        save("beside_rows", {"seeds": list(seeds), "workloads": figures}, plot=_draw(figures))


def _figures(runs: Sequence[Sequence[Seen]]) -> dict[str, float]:
    """Of all seeds' requests together."""
    seen = [one for run in runs for one in run]
    ttft_ms = 1e3 * np.array([one.ttft_s for one in seen])
    gaps_ms = 1e3 * np.array([one.gap_p99_s for one in seen])
    took_s = sum(max(one.end_s for one in run) - run[0].at_s for run in runs)
    return {
        "requests": len(seen),
        "ttft_p50_ms": round(float(np.quantile(ttft_ms, 0.5)), 2),
        "ttft_p90_ms": round(float(np.quantile(ttft_ms, 0.9)), 2),
        "ttft_p99_ms": round(float(np.quantile(ttft_ms, 0.99)), 2),
        "own_gap_p99_p50_ms": round(float(np.quantile(gaps_ms, 0.5)), 2),
        "own_gap_p99_p90_ms": round(float(np.quantile(gaps_ms, 0.9)), 2),
        "held_300_20_percent": _held(seen, 0.300, 0.020),
        "held_500_20_percent": _held(seen, 0.500, 0.020),
        "requests_per_s": round(len(seen) / took_s, 2),
        "cached_tokens": sum(one.cached for one in seen),
        "local_percent": round(100 * float(np.mean([one.is_local for one in seen])), 1),
    }


def _held(seen: Sequence[Seen], ttft_s: float, gap_s: float) -> float:
    held = [one.ttft_s <= ttft_s and one.gap_p99_s <= gap_s for one in seen]
    return round(100 * float(np.mean(held)), 1)


def _draw(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Any:
    """Time to first token and gaps, in parts of what the split cluster has."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    figure.suptitle("Prompts computed where they are decoded, beside a prefill worker")
    names = list(figures)
    keys = {"ttft_p90_ms": "time to first token, p90", "own_gap_p99_p90_ms": "own gaps p99, p90"}
    for panel, (key, title) in zip(figure.subplots(1, 2, sharey=True), keys.items(), strict=True):
        for nth, contender in enumerate(CONTENDERS):
            parts = [figures[name][contender][key] / figures[name]["split"][key] for name in names]
            places = [place + (nth - 1.5) * 0.2 for place in range(len(names))]
            panel.barh(places, parts, height=0.2, label=contender)
        panel.set(title=f"{title}, of split's", yticks=range(len(names)), yticklabels=names)
        panel.axvline(0.9, linestyle="--", color="black", linewidth=0.8)
        panel.grid(alpha=0.3, axis="x")
    panel.invert_yaxis()
    panel.legend(fontsize="small", loc="best")
    return figure


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.virtual.beside_rows")
