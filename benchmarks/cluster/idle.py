"""Idle servers: one request at a time, to one contender and then to the next.

\b
    python -m benchmarks.cluster.idle --contenders benchmarks/contenders/laptop.toml --length 512x8

All contenders run at the same time, and are idle between requests. Each prompt is new and is sent
to all of them, in alternating order, so that a drifting machine favours none. Times start when the
request is sent. Reported with spread: the time to first token, the gap between the first and the
second token, and the median of an answer's later gaps, a decode step. Ratios are of medians to the
first contender's, with 95 % bootstrap intervals over the prompts.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.load.caller import Answer, Caller, make_caller, now_s
from benchmarks.load.client import draw_prompt
from benchmarks.load.confidence import bootstrap_ratio
from benchmarks.load.contender import Contender, ContenderError, choose, contender_options
from benchmarks.load.contender_process import ContenderDiedError, start
from benchmarks.load.progress import make_console
from benchmarks.load.target import Target, TargetError, ask
from benchmarks.result_options import result_options
from benchmarks.results import save

FloatArray = npt.NDArray[np.float64]

WARM_UP = 5  # requests to each contender, of each length
TIMES = ("ttft_ms", "first_gap_ms", "later_gap_ms")
_RATIO_ENDS = ("", "_low", "_high")
_SEED = 0x1D7E
_TIMEOUT_S = 120.0


class IdleError(RuntimeError):
    """A request to an idle server failed."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one contender and length: one value per prompt, in milliseconds."""

    ttft_ms: FloatArray
    first_gap_ms: FloatArray
    later_gap_ms: FloatArray


def of_answers(answers: Sequence[Answer]) -> Times:
    """Each answer must have at least three tokens."""
    times_ms = [np.array(answer.times_s) * 1e3 for answer in answers]
    return Times(
        np.array([times[0] for times in times_ms]),
        np.array([times[1] - times[0] for times in times_ms]),
        np.array([np.median(np.diff(times[1:])) for times in times_ms]),
    )


def describe(times: Times) -> dict[str, float]:
    """Median, quartiles and 99th percentile of each."""
    return {
        f"{name.removesuffix('_ms')}_{what}_ms": round(float(np.percentile(values, p)), 3)
        for name in TIMES
        for what, p in (("p25", 25), ("p50", 50), ("p75", 75), ("p99", 99))
        for values in [getattr(times, name)]
    }


def compare(times: Times, base: Times) -> dict[str, float | None]:
    """Ratios of medians, each with its interval, or None where the base's may be 0, as where tokens
    come together; and how much longer the first gap is than a later one of the same contender."""
    figures: dict[str, float | None] = {}
    for name in TIMES:
        values, bases = getattr(times, name), getattr(base, name)
        stem = name.removesuffix("_ms")
        found: list[float | None] = [None, None, None]
        if (interval := bootstrap_ratio(values, bases)) is not None:
            ratio = float(np.median(values) / np.median(bases))
            found = [round(figure, 4) for figure in (ratio, *interval)]
        figures |= zip((f"{stem}_ratio{end}" for end in _RATIO_ENDS), found, strict=True)
    over_ms = float(np.median(times.first_gap_ms) - np.median(times.later_gap_ms))
    return {**figures, "first_gap_over_step_ms": round(over_ms, 3)}


async def measure(
    targets: Sequence[Target], n_prompt: int, n_output: int, n_requests: int, seed: int
) -> dict[str, Times]:
    """The times by target. Raises `IdleError`."""
    answers: dict[str, list[Answer]] = {target.name: [] for target in targets}
    vocab_size = min(target.vocab_size for target in targets)
    async with AsyncExitStack() as stack:
        callers: list[tuple[str, Caller]] = [
            (t.name, await stack.enter_async_context(make_caller(t.endpoints[0], t.model)))
            for t in targets
        ]
        for nth in range(WARM_UP + n_requests):
            prompt = draw_prompt(vocab_size, (_SEED, seed, n_prompt), nth, n_prompt)
            for name, caller in callers if nth % 2 == 0 else reversed(callers):
                message = caller.build(prompt, n_output, nth)
                answer = Answer(now_s())
                await caller.call(message, answer, _TIMEOUT_S)
                answer.end(n_output)
                if answer.failure:
                    raise IdleError(f"{name}: {answer.failure}")
                if nth >= WARM_UP:
                    answers[name].append(answer)
    return {name: of_answers(some) for name, some in answers.items()}


@click.command(help=__doc__, context_settings={"show_default": True})
@contender_options
@click.option("--length", "lengths", multiple=True, default=["1024x16"], help="INxOUT; repeat.")
@click.option("--requests", "n_requests", default=200, help="To each contender, of each length.")
@click.option("--seed", default=1, help="Of the prompts. One that a server has seen is cached.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="The servers' output.")
@result_options("idle")
def main(**options: Any) -> None:
    try:
        _main(options)
    except (ContenderDiedError, ContenderError, IdleError, TargetError) as error:
        raise click.ClickException(str(error)) from error


def _main(options: dict[str, Any]) -> None:
    console = make_console()
    contenders = choose(*(options[name] for name in ("files", "only", "targets", "settings")))
    lengths = [_parse_length(text) for text in options["lengths"]]
    found: dict[str, dict[str, Times]] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as servers:
        logs = options["log_dir"] or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        started = [servers.enter_context(start(one, logs)).contender for one in contenders]
        targets = [asyncio.run(_ask(one)) for one in started]
        for n_prompt, n_output in lengths:
            with console.status(f"{n_prompt} in, {n_output} out"):
                times = asyncio.run(
                    measure(targets, n_prompt, n_output, options["n_requests"], options["seed"])
                )
            found[f"{n_prompt}x{n_output}"] = times
            _show(console, f"{n_prompt} in, {n_output} out", times)
    told = {key: [*map(str, v)] if isinstance(v, tuple) else v for key, v in options.items()
            if key not in ("folder", "log_dir")}  # fmt: skip
    document = {"arguments": told, "lengths": {key: _figures(of) for key, of in found.items()}}
    path = save(options["name"], document, plot=draw(found), folder=options["folder"],
                commit=options["commit"])  # fmt: skip
    console.print(f"saved {path} and {path.with_suffix('.png').name}")


async def _ask(one: Contender) -> Target:
    return await ask(one.name, one.endpoints, told=one.told, timeout_s=one.start_timeout_s)


def _parse_length(text: str) -> tuple[int, int]:
    n_prompt, _, n_output = text.partition("x")
    if not (n_prompt.isdigit() and n_output.isdigit() and int(n_prompt) and int(n_output) > 2):
        raise click.BadParameter("INxOUT, three or more out: 1024x16", param_hint="--length")
    return int(n_prompt), int(n_output)


def _figures(times_of: Mapping[str, Times]) -> dict[str, Any]:
    base = next(iter(times_of.values()))
    return {
        name: {
            "figures": describe(times),
            "to_first": compare(times, base),
            "requests": {what: np.round(getattr(times, what), 3).tolist() for what in TIMES},
        }
        for name, times in times_of.items()
    }


def _show(console: Console, title: str, times_of: Mapping[str, Times]) -> None:
    table = Table(title=f"{title}, ms", title_justify="left")
    for header in ("", "", "median", "p25 – p75", "p99", "ratio", "95 %"):
        table.add_column(header, justify="left" if not header else "right")
    base = next(iter(times_of.values()))
    for name, times in times_of.items():
        figures, ratios = describe(times), compare(times, base)
        for what in (one.removesuffix("_ms") for one in TIMES):
            p25, p50, p75, p99 = (figures[f"{what}_{p}_ms"] for p in ("p25", "p50", "p75", "p99"))
            ratio, low, high = (_digits(ratios[f"{what}_ratio{end}"]) for end in _RATIO_ENDS)
            interval = ("", "") if times is base else (ratio, f"{low} – {high}")
            values = (f"{p50:.2f}", f"{p25:.2f} – {p75:.2f}", f"{p99:.2f}")
            table.add_row(name, what.replace("_", " "), *values, *interval)
    console.print(table)
    for name, times in times_of.items():
        over_ms = compare(times, base)["first_gap_over_step_ms"]
        console.print(f"{name}: the first gap is {over_ms:.2f} ms longer than later ones")


def _digits(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio:.3f}"


def draw(found: Mapping[str, Mapping[str, Times]]) -> Any:
    """One row per length: cumulative TTFT, first gap and later gaps."""
    figure = Figure(figsize=(15, 3.6 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), len(TIMES), squeeze=False)
    names = ("time to first token", "first gap", "later gaps (an answer's median)")
    for row, (length, times_of) in zip(panels, found.items(), strict=True):
        for panel, what, title in zip(row, TIMES, names, strict=True):
            for name, times in times_of.items():
                values = np.sort(getattr(times, what))
                panel.step(values, np.arange(1, len(values) + 1) / len(values), label=name)
                panel.axvline(np.median(values), color="grey", linewidth=0.6, linestyle=":")
            panel.set(title=f"{length}: {title}", xlabel="ms", ylabel="share of requests")
            panel.grid(alpha=0.3)
            panel.legend(loc="best")
    return figure


if __name__ == "__main__":
    main()
