"""Finds the fastest configurations of a decode step's products on this card, and of its attention.

    python -m benchmarks.kernels.few_rows [--only products,attention] [--rows 8,64]
        [--shapes qkv,out] [--folder FOLDER]

Shapes are those of Llama-3.1-8B, Qwen2.5-7B and a quarter of Llama-3.1-70B. Weights are read from
memory (copies of at least 256 MiB alternate), launches overlap as in a step. All of
`few_rows_plan.candidates` are built, compared with the library's answer and timed. Configurations
that beat `config_for`'s choice by more than 3 % are printed for `engine/cuda/products.py`. Takes
about two minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.card import Call, empty, measure_ceilings, randn, time_s
from benchmarks.kernels.each import (
    DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    PRODUCTS,
    QKV,
    SCALE,
    VOCAB,
    WIDE,
    Pool,
)
from benchmarks.result_options import add_result_options
from benchmarks.results import save
from twolane.engine.kernels.attention.decode_attention import decode_attention
from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig
from twolane.engine.kernels.attention.decode_plan import allocate_plan, items_for, plan_decode
from twolane.engine.kernels.pages.rope_write import rope_write
from twolane.engine.kernels.products.few_rows import PartialSums, few_rows_product
from twolane.engine.kernels.products.few_rows_plan import (
    FewRowsConfig,
    candidates,
    config_for,
    pad_rows,
)
from twolane.engine.kernels.rows.silu import silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.rope import Rope

ROWS = (1, 2, 8, 16, 32, 64, 80, 96, 128, 144, 160, 192)
BUILDERS = 12  # threads that compile: most of it is outside of Python
SHAPES = {name: (*shape, False) for name, shape in PRODUCTS.items() if name != "gate_up"}
SHAPES |= {"gate_up": (WIDE, HIDDEN, True), "head": (VOCAB, HIDDEN, False)}
SHAPES |= {
    "7b qkv": (4608, 3584, False), "7b gate": (18944, 3584, True), "7b down": (3584, 18944, False),
    "70b/4 qkv": (2560, 8192, False), "70b/4 out": (8192, 2048, False),
    "70b/4 gate": (7168, 8192, True), "70b/4 down": (8192, 7168, False),
}  # fmt: skip
ATTENTION = ((1, 4096), (8, 1024), (16, 1024), (32, 1024), (64, 1024), (128, 1024))
NOISE = 0.03  # smaller gains are ignored


@dataclass(frozen=True, slots=True)
class Case:
    """One product at one number of rows, with copies of its weights that exceed the cache."""

    name: str
    x: torch.Tensor
    weights: list[torch.Tensor]
    gated: bool
    sums: PartialSums

    @property
    def shape(self) -> tuple[int, int, int]:
        """(rows, outputs or units, inputs)"""
        weight = self.weights[0]
        return len(self.x), len(weight) // (2 if self.gated else 1), weight.shape[1]

    def library(self, weight: torch.Tensor) -> torch.Tensor:
        wide = torch.mm(self.x, weight.t())
        if not self.gated:
            return wide
        thin = empty(len(wide), wide.shape[1] // 2)
        silu_mul(wide, out=thin)
        return thin

    def calls(self, config: FewRowsConfig, *, pdl: int = 1) -> list[Call]:
        out = empty(*self.shape[:2])
        return [
            partial(few_rows_product, self.x, weight, out=out, sums=self.sums, gated=self.gated,
                    config=config, pdl=pdl)
            for weight in self.weights
        ]  # fmt: skip

    def error(self, config: FewRowsConfig) -> float:
        """Against the library's answer, at random rows."""
        out = torch.full(self.shape[:2], torch.nan, device="cuda", dtype=self.x.dtype)
        few_rows_product(self.x, self.weights[0], out=out, sums=self.sums, gated=self.gated,
                         config=config,
               pdl=1)  # fmt: skip
        return relative_error(out, self.library(self.weights[0]))


def _in_turn(*calls: Call) -> None:
    for call in calls:
        call()


def overlapping_s(calls: Sequence[Call]) -> float:
    """Seconds per call, with all calls in one graph after another kernel, so that the first call
    overlaps too."""
    first = empty(64)
    return time_s([lambda: first.add_(1), *calls], replays=7) * (1 + 1 / len(calls))


class Search:
    """Times candidates of one case; records all, prints the best."""

    def __init__(self, case: Case, read: float) -> None:
        self.case = case
        self.n_bytes = case.weights[0].nbytes
        self.read = read
        self.rows: list[dict[str, Any]] = []

    def add(self, label: str, calls: Sequence[Call], config: FewRowsConfig | None = None) -> float:
        repeats = max(1, 16 // len(calls))
        time_us = overlapping_s(list(calls) * repeats) * 1e6
        share = self.n_bytes / self.read * 1e6 / time_us
        row = {"name": self.case.name, "rows": len(self.case.x), "label": label,
               "time_us": round(time_us, 2), "share": round(share, 3)}  # fmt: skip
        self.rows.append(row | ({"config": asdict(config)} if config else {}))
        return time_us

    def best(self, configs: Iterable[FewRowsConfig]) -> FewRowsConfig:
        """The fastest of those with correct results."""
        configs = list(configs)
        with ThreadPoolExecutor(BUILDERS) as pool:
            errors = list(pool.map(self.case.error, configs))
        timed: list[tuple[float, FewRowsConfig]] = []
        for config, error in zip(configs, errors, strict=True):
            if not error < 1e-2:
                print(f"  WRONG by {error}: {config}", flush=True)
                self.rows.append({"wrong": str(error), "config": asdict(config)})
                continue
            timed.append((self.add("ours", self.case.calls(config), config), config))
        return min(timed, key=lambda one: one[0])[1]

    def time_of(self, config: FewRowsConfig) -> float:
        held = asdict(config)
        return float(min(row["time_us"] for row in self.rows if row.get("config") == held))


def bench_products(
    read: float, rows_wanted: Sequence[int], names: Sequence[str]
) -> list[dict[str, Any]]:
    cores = torch.cuda.get_device_properties(0).multi_processor_count
    found: list[dict[str, Any]] = []
    winners: list[str] = []
    for name in names:
        outer, inner, gated = SHAPES[name]
        n_bytes = outer * (1 + gated) * inner * 2
        copies = max(2, -(-(256 << 20) // n_bytes))
        weights = [randn(outer * (1 + gated), inner) for _ in range(copies)]
        sums = PartialSums("cuda")
        for rows in rows_wanted:
            case = Case(name, randn(rows, inner), weights, gated, sums)
            search = Search(case, read)
            library_us = search.add("cublas", [partial(case.library, w) for w in weights])
            guess = config_for(rows, outer, inner, gated=gated, cores=cores)
            best = search.best(candidates(rows, outer, inner, gated=gated, cores=cores))
            search.add("ours, launches apart", case.calls(best, pdl=0))
            search.add("ours, early", case.calls(best, pdl=2))
            best_us, guess_us = search.time_of(best), search.time_of(guess)
            share = n_bytes / read * 1e6 / best_us
            print(
                f"{name:10s} {rows:4d}  cublas {library_us:7.1f} us  "
                f"guess {guess_us:7.1f}  best "
                f"{best_us:7.1f} us ({share:5.1%} of read rate)  {best}",
                flush=True,
            )
            if library_us < best_us * (1 - NOISE):
                winners.append(f"    {(pad_rows(rows), outer, inner, gated, 2)}: None,")
            elif best_us < guess_us * (1 - NOISE):
                winners.append(f"    {(pad_rows(rows), outer, inner, gated, 2)}: {best},")
            found += search.rows
        del weights
        torch.cuda.empty_cache()
    print("MEASURED = {", *winners, "}", sep="\n")
    return found


def bench_attention(read: float) -> list[dict[str, Any]]:
    """Each call follows a write of new keys, as in a step: both are timed together."""
    cores = torch.cuda.get_device_properties(0).multi_processor_count
    cos, sin = (torch.from_numpy(t).cuda() for t in Rope(500000.0).tables(8192, DIM))
    found: list[dict[str, Any]] = []
    for batch, context in ATTENTION:
        pool = Pool(batch, context, layers=8)
        qkv, queries, out = randn(batch, QKV), empty(batch, HEADS, DIM), empty(batch, HEADS, DIM)
        positions = pool.lengths - 1
        slots = pool.tables[:, -1].long() * 64 + positions % 64
        usual = items_for(batch, kv_heads=KV_HEADS, cores=cores)
        results: list[tuple[float, str]] = []
        for items in sorted({usual, *(n for n in (16, 24, 32, 48, 64) if n >= batch)}):
            plan = allocate_plan(
                batch, max_items=items, kv_heads=KV_HEADS, group=HEADS // KV_HEADS, head_dim=DIM,
                device="cuda",
            )  # fmt: skip
            plan_decode(plan, pool.lengths, pool.tables, page_tokens=64)
            for stages, ahead in ((3, 2), (2, 2), (4, 2), (3, 0), (3, 4)):
                config = DecodeAttentionConfig(stages=stages, ahead=ahead)
                calls: list[Call] = []
                for layer in range(8):
                    calls.append(
                        partial(rope_write, qkv, pool.view, layer, positions, slots, cos, sin,
                                queries=queries, pdl=1)
                    )  # fmt: skip
                    calls.append(
                        partial(decode_attention, queries, pool.view, layer, pool.tables, plan,
                                out=out, scale=SCALE, config=config, pdl=1)
                    )  # fmt: skip
                time_us = 2e6 * overlapping_s(calls * 2)
                label = f"items {items}{' (usual)' * (items == usual)} {stages=} {ahead=}"
                results.append((time_us, label))
                found.append({"name": f"attention {batch} x {context}", "label": label,
                              "time_us": round(time_us, 2),
                              "share": round(pool.bytes / read * 1e6 / time_us, 3)})  # fmt: skip
        for time_us, label in sorted(results)[:3]:
            print(f"rope + attention {batch} x {context}: {time_us:6.2f} us  {label}", flush=True)
        plain = next(r for r in results if "(usual) stages=3 ahead=0" in r[1])
        print(f"    usual, nothing ahead: {plain[0]:6.2f} us", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="products,attention")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(str(n) for n in ROWS))
    add_result_options(parser)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 1
    torch.manual_seed(0)
    begun = time.perf_counter()
    read = measure_ceilings().read
    torch.cuda.empty_cache()
    sections: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "products": lambda: bench_products(
            read, [int(n) for n in args.rows.split(",")], args.shapes.split(",")
        ),
        "attention": lambda: bench_attention(read),
    }
    rows = [row for name in args.only.split(",") for row in sections[name]()]
    took_s = round(time.perf_counter() - begun, 1)
    figures = {"read_tb_per_s": round(read / 1e12, 3), "took_s": took_s, "rows": rows}
    path = save("few_rows", figures, folder=args.folder, commit=args.commit)
    print(f"took {took_s} s; saved", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
