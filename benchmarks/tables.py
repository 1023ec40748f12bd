"""Write the tables of README.md and docs/ whose figures are those of saved results.

    python -m benchmarks.tables

A table is what stands between "<!-- table: NAME -->" and "<!-- end of table -->".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from benchmarks.goodput.measured import Measured
from benchmarks.goodput.reference import key, read_reference
from benchmarks.load.record import Slo
from benchmarks.machine import REPOSITORY
from benchmarks.results import RESULTS

PAGES = tuple(REPOSITORY / its for its in ("README.md", "docs/planning.md", "docs/measurements.md"))
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

HELD_SHARE = 0.9  # of requests, for a rate to be held
SLOS = (Slo(0.3, 0.015), Slo(0.3, 0.020), Slo(0.5, 0.030))
LENGTHS = {
    "128x512": "128 in, 512 out",
    "4096x64": "4,096 in, 64 out",
    "azure-code": "Azure's code completions",
    "azure-conv": "Azure's conversations",
}

# What twolane set itself when its products were rebuilt: a step's time as a share of vLLM's, or of
# the roofline's as a share of it; milliseconds with FP8 weights, and with FP8 pages too.
OF_VLLM = {
    "decode:1x128": 0.78, "decode:8x1024": 0.78, "decode:32x1024": 0.80, "decode:64x1024": 0.84,
    "decode:128x1024": 0.84, "decode:256x1024": 0.84, "decode:64x4096": 0.89,
    "prefill:1x512": 0.88, "prefill:1x2048": 0.98, "prefill:1x8192": 0.96,
    "prefill:16x2048": 0.96, "prefill:32x4096": 0.96,
}  # fmt: skip
OF_ROOFLINE = dict.fromkeys((f"decode:{rows}x1024" for rows in (65, 80, 96, 160, 192)), 0.82)
FP8_MS = {"decode:1x128": 2.6, "decode:8x1024": 3.0, "decode:64x1024": 4.9}
FP8_OF_VLLM = dict.fromkeys((its for its in OF_VLLM if its.startswith("prefill")), 0.60)
FP8_KV_MS = {"decode:64x1024": 4.1, "decode:256x1024": 9.5}

Point = Mapping[str, Any]


def read(name: str, results: Path = RESULTS) -> Any:
    """The figures of a saved result."""
    return json.loads((results / f"{name}.json").read_text())["figures"]


def runs_of(name: str, results: Path = RESULTS) -> list[Measured]:
    """The runs of a saved `benchmarks.goodput.measure`."""
    return [Measured.from_json(run) for run in read(name, results)["runs"]]


def served(runs: Sequence[Measured], contender: str, slo: Slo) -> str:
    """`26 (30)`: the highest rate that all rounds hold, and the next, that not all of them do."""
    rates: dict[float, bool] = {}
    for run in runs:
        if run.contender == contender:
            holds = run.tally(slo).share >= HELD_SHARE
            rates[run.rate_per_s] = rates.get(run.rate_per_s, True) and holds
    held = list(takewhile(rates.__getitem__, sorted(rates)))
    missed = [rate for rate in sorted(rates) if rate not in held]
    if not held:
        return f"below {missed[0]:g}"
    return f"{held[-1]:g} ({missed[0]:g})" if missed else f"at least {held[-1]:g}"


def shares(runs: Sequence[Measured], slo: Slo) -> str:
    """`0.83, 1.00`: of the requests within the SLO, in each round."""
    cells = [
        f"{run.tally(slo).share:.2f}" + " (given up)" * bool(run.halted)
        for run in sorted(runs, key=lambda run: run.round)
    ]
    return cells[0] + " (one round)" if len(cells) == 1 else ", ".join(cells)


def goodput(results: Path = RESULTS) -> str:
    runs = runs_of("goodput_h200_sdk", results)
    vllm = read_reference("vllm_two_h200", "balanced")
    head = (
        "time to first token, p99 of a request's own gaps", "twolane, 1 prefill + 1 decode",
        "with FP8 pages on the decode side", "vLLM 0.24, 1 + 1 over NIXL",
        "vLLM 0.24, 2 colocated",
    )  # fmt: skip
    rows = [
        [
            f"{slo.ttft_s * 1e3:g} ms, {slo.gap_s * 1e3:g} ms",
            *(served(runs, name, slo) for name in ("split", "split_fp8_kv")),
            *(
                f"{vllm[mode].served_per_s[key(slo)]:g}"
                for mode in ("vLLM 1P1D over NIXL", "vLLM 2 colocated")
            ),
        ]
        for slo in SLOS
    ]
    return markdown(head, rows)


def lengths(results: Path = RESULTS) -> str:
    slos = (Slo(0.5, 0.020), Slo(0.5, 0.100))
    head = ["load", "requests/s"]
    head += [f"{who}, {slo.gap_s * 1e3:g} ms" for slo in slos for who in ("split", "colocated")]
    rows = []
    for workload, words in LENGTHS.items():
        runs = runs_of(f"goodput_h200_{workload}", results)
        for rate_per_s in sorted({run.rate_per_s for run in runs}):
            cells = [
                shares(
                    [run for run in runs if (run.contender, run.rate_per_s) == (who, rate_per_s)],
                    slo,
                )
                for slo in slos
                for who in ("split", "colocated")
            ]
            rows.append([words, f"{rate_per_s:g}", *cells])
    return markdown(head, rows)


def steps(results: Path = RESULTS) -> str:
    bf16, another, exact, fp8, fp8_kv = (
        {point["name"]: point for point in read(name, results)["points"]}
        for name in (
            "engine_bf16", "engine_bf16_another_card", "engine_exact", "engine_fp8_weights",
            "engine_fp8_weights_fp8_kv",
        )
    )  # fmt: skip
    head = (
        "step", "ms in each round", "of vLLM 0.24's (aim)", "of the roofline (aim)",
        "another card: ms", "of vLLM's", "of the roofline",
        "exact mode adds", "with FP8 weights (aim)", "with FP8 weights and pages (aim)",
    )  # fmt: skip
    rows = []
    for name, point in bf16.items():
        with_fp8, with_both = fp8.get(name), fp8_kv.get(name)
        if name.startswith("prefill"):
            fp8_cell = _of_vllm(with_fp8, FP8_OF_VLLM) + " of vLLM's bf16" if with_fp8 else ""
        else:
            fp8_cell = _ms(with_fp8, FP8_MS)
        exact_cell = ""
        if name in exact:
            exact_cell = _more(exact[name]["time_ms"] / point["time_ms"])
        rows.append(
            [
                _in_words(name),
                *_on_a_card(point),
                *_on_a_card(another[name]),
                exact_cell,
                fp8_cell,
                _ms(with_both, FP8_KV_MS),
            ]
        )
    return markdown(head, rows)


def sustained(results: Path = RESULTS) -> str:
    head = ("step", "ms", "clock, MHz", "power, W", "of the roofline at the sustained rate")
    rows = [
        [
            _in_words(point["name"]),
            _short(point["time_ms"]),
            f"{point['clock_mhz']:,.0f}",
            f"{point['watts']:.0f}",
            f"{point['share_of_roofline']:.3f}",
        ]
        for point in read("engine_bf16", results)["sustained"]["points"]
    ]
    return markdown(head, rows)


def _on_a_card(point: Point) -> list[str]:
    return [
        ", ".join(_short(each) for each in point["rounds_ms"]),
        _of_vllm(point, OF_VLLM),
        _aimed(point["share_of_roofline"], OF_ROOFLINE.get(point["name"]), at_least=True),
    ]


def _in_words(name: str) -> str:
    kind, _, size = name.partition(":")
    rows, _, tokens = size.partition("x")
    return f"{'prompts' if kind == 'prefill' else kind}, {rows} x {int(tokens):,}"


def _more(ratio: float) -> str:
    percent = round((ratio - 1) * 100)
    return f"{percent:+d} %".replace("-", "−") if percent else "0 %"


def _short(ms: float) -> str:
    return f"{ms:.2f}" if ms < 100 else f"{ms:,.0f}"


def _ms(point: Point | None, aims: Mapping[str, float]) -> str:
    if point is None:
        return ""
    return _aimed(point["time_ms"], aims.get(point["name"]), digits=2, unit=" ms")


def _of_vllm(point: Point, aims: Mapping[str, float]) -> str:
    return "" if point["of_vllm"] is None else _aimed(point["of_vllm"], aims.get(point["name"]))


def _aimed(
    value: float, aim: float | None, *, at_least: bool = False, digits: int = 3, unit: str = ""
) -> str:
    """`0.865 (0.84)`, bold where the aim is missed."""
    text = f"{value:.{digits}f}{unit}"
    if aim is None:
        return text
    if value < aim if at_least else value > aim:
        text = f"**{text}**"
    return f"{text} ({aim:.2f})" if digits == 3 else f"{text} ({aim:g})"


TABLES: Mapping[str, Callable[[Path], str]] = {
    its.__name__: its for its in (goodput, lengths, steps, sustained)
}


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "--|" * len(head), *lines[1:]])


def rewritten(page: str, results: Path = RESULTS) -> str:
    """The page with every table as the results have it. KeyError: there is no such table."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]](results)}\n{found[3]}", page)


@click.command(help=__doc__)
def main() -> None:
    for path in PAGES:
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
