"""Steps of the engine on this GPU, compared to the card's ceilings and to vLLM.

    python -m benchmarks.engine.steps [--points decode:1x128,prefill:1x2048] [--mix] [--startup]
                                [--exact] [--weights fp8] [--kv-dtype fp8] [--profile DIR]
                                [--rounds 2] [--sustain-s 5]
                                [--library-products] [--ring-kib 144]
                                [--overlap 0|1|2]
    python -m benchmarks.engine.steps --shape 70b --tp 2 [--nccl-sums]

A random model in the shape of Llama-3.1-8B, bf16, pages filled with random data. No worker, no
network: steps are pipelined as a worker does it. A decode point is the median gap between the
results of consecutive steps; a prefill point is the time from the first submission to the first
tokens. All points are measured in each of `--rounds`; a point's time is the median of its rounds',
which are saved, too. The ceilings are measured first, in the same run; rooflines are computed in
`benchmarks.engine.points`. `--sustain-s` adds each point, and products of the card, for so many
seconds on end, with clock and power (`benchmarks.engine.sustained`). `--mix` adds 1,000 requests
offline through the colocated worker loop (`benchmarks.engine.mix`), `--startup` the time until new
processes are ready, and to their first token (`benchmarks.engine.start`). The engine is warmed up
for the steps of that loop.

With `--tp`, on so many GPUs: pages are filled by prefills, since the ranks' pools cannot be
accessed from here, and rooflines are those of one GPU with the rates of all GPUs together.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.mix import LIMITS, measure_mix
from benchmarks.engine.points import (
    LLAMA_8B,
    LLAMA_70B,
    PAGE_TOKENS,
    Point,
    Rates,
    Rows,
    Shape,
    Stored,
    checked,
    decode_s,
    has_vllms_card,
    pages_for,
    prefill_s,
)
from benchmarks.engine.start import measure_starts
from benchmarks.engine.sustained import measure_sustained
from benchmarks.kernels.card import measure_ceilings, measure_fp8_ceiling
from benchmarks.kernels.each import fill_fp8
from benchmarks.result_options import add_result_options
from benchmarks.results import save
from twolane.engine.config import NOT_EXACT, EngineConfig
from twolane.engine.cuda.memory import tensor_of
from twolane.engine.cuda.startup.load import load_cuda_engine
from twolane.engine.cuda.tuning import DEFAULT_TUNING, Tuning
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.load import load_engine
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.step import Engine

# vLLM 0.24 on an H200, in bf16: milliseconds of a decode step, or of a whole prefill.
VLLM_MS = {
    "decode:1x128": 4.98, "decode:1x4096": 5.14, "decode:8x1024": 5.40, "decode:32x1024": 6.43,
    "decode:64x1024": 7.54, "decode:128x1024": 10.57, "decode:256x1024": 17.69,
    "decode:64x4096": 13.42,
    "prefill:1x512": 14.8, "prefill:1x2048": 49.1, "prefill:1x8192": 207.0,
    "prefill:16x2048": 16 * 2048 / 43.5, "prefill:32x4096": 32 * 4096 / 41.9,
}  # fmt: skip
SHAPES = {"8b": LLAMA_8B, "70b": LLAMA_70B}
POINTS = {"8b": ",".join(VLLM_MS), "70b": "decode:1x1024,decode:64x1024"}
START_PAGES, MIX_PAGES = 4800, 15_000  # enough for any point; 117 GiB of a card's 140


def measure_s(engine: Engine, point: Point) -> list[float]:
    """Measure one point several times; the first prefill does not count."""
    rows = Rows(point, engine.spec)
    if point.is_decode:
        if engine.device_pool is None:  # the pool cannot be filled directly
            prefill_s(engine, rows)
        times = decode_s(engine, rows)
    else:
        repeats = 3 if point.rows * point.tokens <= 40_000 else 1
        times = [prefill_s(engine, rows) for _ in range(1 + repeats)][1:]
    print(f"{point.name:18s} {median(times) * 1e3:9.3f} ms", flush=True)
    return times


def describe(
    point: Point, rounds: Sequence[Sequence[float]], rates: Rates, stored: Stored, shape: Shape
) -> dict[str, Any]:
    """A point's row of the result: `rounds` are the seconds measured in each."""
    rounds_s = [median(times) for times in rounds]
    time_s, roofline_s = median(rounds_s), point.roofline_s(rates, shape, stored)
    is_compared = shape is LLAMA_8B and has_vllms_card()
    theirs = VLLM_MS.get(point.name) if is_compared else None
    n = point.rows if point.is_decode else point.rows * point.tokens
    row = {
        "name": point.name,
        "time_ms": round(time_s * 1e3, 3),
        "rounds_ms": [round(each * 1e3, 3) for each in rounds_s],
        "best_ms": round(min(map(min, rounds)) * 1e3, 3),
        "roofline_ms": round(roofline_s * 1e3, 3),
        "share_of_roofline": round(roofline_s / time_s, 3),
        "tokens_per_s": round(n / time_s),
        "vllm_ms": theirs,
        "of_vllm": round(time_s * 1e3 / theirs, 3) if theirs else None,
    }
    spread = " to ".join(f"{each * 1e3:.3f}" for each in sorted({min(rounds_s), max(rounds_s)}))
    print(
        f"{point.name:18s} {spread:>18s} ms  {row['share_of_roofline']:6.1%} of roofline"
        + (f"  {row['of_vllm']:5.3f} of vLLM" if theirs else ""),
        flush=True,
    )
    return row


@contextmanager
def shape_folder(shape: Shape) -> Iterator[Path]:
    """A model directory with only a config.json."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape.config()))
        yield Path(folder)


def load(config: EngineConfig, tuning: Tuning, shape: Shape) -> Engine:
    """The engine, with random pages; with several ranks, pages are not initialised."""
    if config.tensor_parallel > 1:
        return load_engine(config)
    engine = load_cuda_engine(config, tuning=tuning)
    assert engine.device_pool is not None
    pages = tensor_of(engine.device_pool)
    if config.kv_dtype == "fp8":
        view = KVView(
            values=pages.view(FP8), layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.dim
        )
        fill_fp8(view)
    else:
        for part in torch.split(pages.view(torch.bfloat16), 1 << 30):
            part.normal_()
    torch.cuda.synchronize()
    return engine


def _changes(tuning: Tuning) -> str:
    """For a file name: the settings that differ from the default."""
    usual, found = asdict(DEFAULT_TUNING), asdict(tuning)
    return "".join(f"_{name}_{int(found[name])}" for name in found if found[name] != usual[name])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--points", help="all of the shape's, unless given")
    parser.add_argument("--tp", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--exact", action="store_true", help="exact mode, for its cost")
    parser.add_argument("--weights", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--kv-dtype", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--profile", type=Path, help="write a trace of each point into this folder")
    parser.add_argument("--rounds", type=int, default=2, help="how often each point is measured")
    parser.add_argument("--sustain-s", type=float, default=0.0, help="and for how long on end")
    parser.add_argument("--mix", action="store_true", help="1,000 requests offline, too")
    parser.add_argument("--startup", action="store_true", help="starts of new processes, too")
    parser.add_argument("--name", help="of the result; else by what is measured")
    add_result_options(parser)
    other = parser.add_argument_group("to compare", "see twolane.engine.cuda.tuning")
    other.add_argument("--nccl-sums", action="store_true", help="with --tp, no sums of our own")
    other.add_argument("--library-products", action="store_true")
    other.add_argument("--ring-kib", type=int, default=DEFAULT_TUNING.ring_bytes >> 10)
    other.add_argument("--overlap", type=int, default=DEFAULT_TUNING.overlap, choices=(0, 1, 2))
    args = parser.parse_args()
    if args.rounds < 1 or args.sustain_s < 0:
        parser.error("--rounds is at least 1, and --sustain-s not negative")
    if args.sustain_s and shutil.which("nvidia-smi") is None:
        parser.error("--sustain-s asks nvidia-smi for clock and power, which is not installed")
    if args.tp > 1 and (
        args.mix
        or args.startup
        or args.profile
        or args.sustain_s
        or _tuning(args) != DEFAULT_TUNING
    ):
        parser.error(
            "--tp is for points with default settings only: ranks cannot be inspected from here"
        )
    if args.shape == "70b" and (args.tp == 1 or args.mix or args.startup):
        parser.error("--shape 70b is for points on several GPUs (--tp)")
    if args.exact and args.weights == "fp8":
        parser.error(f"--exact --weights fp8: {NOT_EXACT}")
    if args.startup and (args.weights, args.kv_dtype) != ("auto", "auto"):
        parser.error("--startup measures starts in bf16")
    return args


def _tuning(args: argparse.Namespace) -> Tuning:
    return Tuning(
        library_products=args.library_products,
        ring_bytes=args.ring_kib << 10,
        overlap=args.overlap,
    )


def main() -> int:
    args = _options()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 1
    torch.manual_seed(0)
    begun = time.perf_counter()
    shape, given = SHAPES[args.shape], POINTS[args.shape] if args.points is None else args.points
    points = [Point.parse(text) for text in filter(None, given.split(","))]
    stored = Stored(args.weights, args.kv_dtype)
    tuning = _tuning(args)
    ceilings = measure_ceilings()
    rates = Rates(ceilings.read, ceilings.matmul)
    figures: dict[str, Any] = {
        "shape": args.shape, "ranks": args.tp, "peer_all_reduce": not args.nccl_sums,
        "exact": args.exact, **asdict(stored), "tuning": asdict(tuning),
        "ceilings": ceilings.rows[0],
    }  # fmt: skip
    if args.weights == "fp8":
        rates = replace(rates, fp8_matmul=measure_fp8_ceiling())
        figures["ceilings"] |= {"fp8_tflop_per_s": round(rates.fp8_matmul / 1e12, 1)}
    rates = rates.of_all(args.tp)
    torch.cuda.empty_cache()
    with shape_folder(shape) as folder:
        if args.startup:  # while nothing else is on the card
            figures["startup"] = measure_starts(
                folder, device="cuda", dtype="bfloat16", n_pages=START_PAGES, exact=args.exact
            )
        started = time.perf_counter()
        config = EngineConfig(
            model_dir=folder, dtype="bfloat16", load_format="random", exact=args.exact,
            n_pages=MIX_PAGES if args.mix else pages_for(points), page_tokens=PAGE_TOKENS,
            device="cuda", tensor_parallel=args.tp, peer_all_reduce=not args.nccl_sums,
            ready_rows=LIMITS.decode_rows, ready_tokens=LIMITS.step_tokens, **asdict(stored),
        )  # fmt: skip
        engine = load(config, tuning, shape)
        ready_s = time.perf_counter() - started
    started = time.perf_counter()
    checked(engine.run(Rows(Point("prefill", 1, 128), engine.spec).prefill()[0]))
    first_s = time.perf_counter() - started
    print(f"ready in {ready_s:.1f} s, first step {first_s:.2f} s", flush=True)
    rounds = [[measure_s(engine, point) for point in points] for _ in range(args.rounds)]
    rows = [
        describe(point, times, rates, stored, shape)
        for point, *times in zip(points, *rounds, strict=True)
    ]
    if args.profile is not None:
        for point in points:
            profile(engine, point, args.profile)
    if args.sustain_s:
        figures["sustained"] = measure_sustained(
            engine, points, rates, shape, stored, args.sustain_s
        )
    if args.mix:
        figures["mix"] = measure_mix(engine)
    figures |= {
        "ready_s": round(ready_s, 2),
        "first_step_s": round(first_s, 3),
        "took_s": round(time.perf_counter() - begun, 1),
        "points": rows,
    }
    engine.close()
    name = "engine" + f"_{args.shape}_tp{args.tp}" * (args.tp > 1) + "_nccl" * args.nccl_sums
    name += "_exact" * args.exact + stored.suffix + _changes(tuning)
    print("saved", save(args.name or name, figures, folder=args.folder, commit=args.commit))
    return 0


def profile(engine: Engine, point: Point, folder: Path) -> None:
    """Write a trace of a few steps (open it in chrome://tracing or Perfetto), and a table of device
    time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    folder.mkdir(parents=True, exist_ok=True)
    rows = Rows(point, engine.spec)
    device = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with recording(activities=[ProfilerActivity.CPU, *device]) as trace:
        for _ in range(3):
            work = rows.decode() if point.is_decode else rows.prefill()[0]
            engine.run(work)
    name = f"{point.kind}_{point.rows}x{point.tokens}"
    trace.export_chrome_trace(str(folder / f"{name}.json"))
    table = trace.key_averages().table(sort_by="self_device_time_total", row_limit=16)
    (folder / f"{name}.txt").write_text(table)


if __name__ == "__main__":
    sys.exit(main())
