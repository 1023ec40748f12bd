"""The engine on this GPU, a step at a time, against the card's own ceilings and vLLM's figures.

    python -m benchmarks.engine [--points decode:1x128,prefill:1x2048] [--mix] [--startup]
                                [--exact] [--profile DIR] [--library-products] [--gemv-rows 0]
                                [--ring-kib 144] [--overlap 0|1|2]

A random model in the shape of Llama-3.1-8B, bf16, pages filled with random data. No worker, no
network: steps are submitted as a worker does it, one ahead of what is known. A decode point is the
median gap between the results of consecutive steps; a prefill point runs from the first submission
to the first tokens. The ceilings are measured first, in the same run. `--mix` adds 1,000 requests
offline through the colocated worker loop (`engine_mix`), `--startup` the time to the first token of
new processes (`engine_start`).

roofline = sum over products and attentions of max(bytes / read rate, operations / matmul rate)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine_mix import measure_mix
from benchmarks.engine_start import measure_starts
from benchmarks.kernels import measure_ceilings
from benchmarks.results import RESULTS, save
from engine.config import EngineConfig
from engine.cuda.engine import CudaEngine
from engine.cuda.load import load_cuda_engine
from engine.cuda.memory import tensor_of
from engine.cuda.tuning import USUAL, Tuning
from engine.step import Engine, EngineSpec, Page, RowWork, Step
from twolane.params import SamplingParams

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "eos_token_id": 2,
}
# vLLM 0.24 on an H200: milliseconds of a decode step, or of a whole prefill.
VLLM_MS = {
    "decode:1x128": 4.98, "decode:1x4096": 5.14, "decode:8x1024": 5.40, "decode:32x1024": 6.43,
    "decode:64x1024": 7.54, "decode:128x1024": 10.57, "decode:256x1024": 17.69,
    "decode:64x4096": 13.42,
    "prefill:1x512": 14.8, "prefill:1x2048": 49.1, "prefill:1x8192": 207.0,
    "prefill:16x2048": 16 * 2048 / 43.5, "prefill:32x4096": 32 * 4096 / 41.9,
}  # fmt: skip
HEADS, KV_HEADS, DIM, HIDDEN, WIDE, LAYERS, VOCAB = 32, 8, 128, 4096, 14336, 32, 128_256
PRODUCTS = ((6144, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))
PAGE_TOKENS, STEP_TOKENS, DECODE_STEPS = 64, 8192, 60
N_PAGES, MIX_PAGES = 4800, 12_800  # what the points need; what a card of 140 GB has room for
GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 20, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Point:
    """`rows` rows: of `tokens` in their pages (decode), or of a prompt of so many (prefill)."""

    kind: str
    rows: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> Point:
        kind, _, size = text.partition(":")
        rows, _, tokens = size.partition("x")
        return cls(kind, int(rows), int(tokens))

    def roofline_s(self, read: float, matmul: float) -> float:
        """The least time that the card's measured rates allow, for a whole prefill or one step."""
        decode = self.kind == "decode"
        n = self.rows if decode else self.rows * self.tokens
        grown = self.tokens + DECODE_STEPS / 2  # contexts grow while they are measured

        def product(outer: int, inner: int, m: float) -> float:
            moved = 2 * (outer * inner + m * (outer + inner))
            return max(moved / read, 2 * m * outer * inner / matmul)

        layer = sum(product(outer, inner, n) for outer, inner in PRODUCTS)
        keys = grown if decode else self.tokens
        moved = 2 * self.rows * (2 * keys * KV_HEADS * DIM) + 4 * n * HEADS * DIM
        pairs = self.rows * (grown if decode else self.tokens * (self.tokens + 1) / 2)
        attention = max(moved / read, 4 * pairs * HEADS * DIM / matmul)
        return LAYERS * (layer + attention) + product(VOCAB, HIDDEN, self.rows)


class Rows:
    """Rows with pages of their own; `work(i)` is the share of row i in the next step."""

    def __init__(self, point: Point, spec: EngineSpec) -> None:
        self.point = point
        most = point.tokens + (DECODE_STEPS + 8 if point.kind == "decode" else 0)
        n_pages = -(-most // spec.page_tokens)
        assert point.rows * n_pages <= spec.n_pages, "the pool is too small for the point"
        order = torch.randperm(spec.n_pages, generator=torch.Generator().manual_seed(1)).tolist()
        self.pages = [
            [Page(page) for page in order[i * n_pages : (i + 1) * n_pages]]
            for i in range(point.rows)
        ]
        ids = torch.randint(3, spec.vocab_size, (point.tokens + 1,)).tolist()
        self.tokens = [ids[:] for _ in range(point.rows)]

    def decode(self, *, ahead: bool = False) -> list[RowWork]:
        """Compute the newest known token, or the one that is being sampled after it."""
        n_prompt = self.point.tokens
        return [
            RowWork(
                i, tokens, len(tokens) - 1 + ahead, 1, pages, n_prompt, GREEDY, True, follows=ahead
            )
            for i, (tokens, pages) in enumerate(zip(self.tokens, self.pages, strict=True))
        ]

    def took(self, sampled: Sequence[int]) -> None:
        for tokens, token in zip(self.tokens, sampled, strict=True):
            tokens.append(token)

    def prefill(self) -> list[list[RowWork]]:
        """Steps of at most STEP_TOKENS, whole rows where they fit."""
        n = self.point.tokens
        steps: list[list[RowWork]] = [[]]
        left = STEP_TOKENS
        for i, (tokens, pages) in enumerate(zip(self.tokens, self.pages, strict=True)):
            start = 0
            while start < n:
                if not left:
                    steps.append([])
                    left = STEP_TOKENS
                new = min(left, n - start)
                steps[-1].append(
                    RowWork(i, tokens[:n], start, new, pages, n, GREEDY, start + new == n)
                )
                start, left = start + new, left - new
        return steps


def decode_s(engine: Engine, point: Point, n_steps: int = DECODE_STEPS) -> list[float]:
    """Seconds between the results of consecutive steps, each submitted one ahead; the first few
    gaps, while the queue fills, do not count."""
    rows = Rows(point, engine.spec)
    for _ in range(2):  # capture, then once more
        _check(engine.run(rows.decode()))
    gaps: list[float] = []
    before: Step = engine.submit(rows.decode())
    last = time.perf_counter()
    for _ in range(1, n_steps):
        following = engine.submit(rows.decode(ahead=True))
        rows.took(_check(before.result()))
        now = time.perf_counter()
        gaps.append(now - last)
        last, before = now, following
    before.result()
    return gaps[3:]


def prefill_s(engine: Engine, point: Point, repeats: int) -> list[float]:
    """Seconds of a whole prefill, `repeats` times after a first that does not count."""
    rows = Rows(point, engine.spec)
    times: list[float] = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        handles: list[Step] = []
        for work in rows.prefill():
            handles.append(engine.submit(work))
            if len(handles) > 1:
                _check(handles.pop(0).result())
        _check(handles.pop().result())
        times.append(time.perf_counter() - started)
    return times[1:]


def _check(results: Sequence[Any]) -> list[int]:
    assert not any(result.error for result in results), results[:2]
    return [result.tokens[0].token for result in results if result.tokens]


def measure(engine: Engine, point: Point, read: float, matmul: float) -> dict[str, Any]:
    if point.kind == "decode":
        times = decode_s(engine, point)
    else:
        times = prefill_s(engine, point, 3 if point.rows * point.tokens <= 40_000 else 1)
    time_s = median(times)
    name = f"{point.kind}:{point.rows}x{point.tokens}"
    theirs = VLLM_MS.get(name)
    row = {
        "name": name,
        "time_ms": round(time_s * 1e3, 3),
        "best_ms": round(min(times) * 1e3, 3),
        "roofline_ms": round(point.roofline_s(read, matmul) * 1e3, 3),
        "share_of_roofline": round(point.roofline_s(read, matmul) / time_s, 3),
        "vllm_ms": theirs,
        "of_vllm": round(time_s * 1e3 / theirs, 3) if theirs else None,
    }
    if point.kind == "prefill":
        row["tokens_per_s"] = round(point.rows * point.tokens / time_s)
    print(
        f"{name:18s} {row['time_ms']:9.3f} ms  {row['share_of_roofline']:6.1%} of roofline  "
        f"{row['of_vllm'] or 0:5.2f} of vLLM",
        flush=True,
    )
    return row


@contextmanager
def shape_folder() -> Iterator[Path]:
    """A model directory with SHAPE's configuration and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
        yield Path(folder)


def load(exact: bool, n_pages: int, tuning: Tuning) -> tuple[CudaEngine, float]:
    """The engine with random pages, and the seconds it took to load."""
    with shape_folder() as folder:
        started = time.perf_counter()
        engine = load_cuda_engine(
            EngineConfig(
                model_dir=folder, dtype="bfloat16", n_pages=n_pages, load_format="random",
                exact=exact, page_tokens=PAGE_TOKENS,
            ),
            tuning=tuning,
        )  # fmt: skip
        torch.cuda.synchronize()
        loaded_s = time.perf_counter() - started
    assert engine.device_pool is not None
    pages = tensor_of(engine.device_pool).view(torch.bfloat16)
    for part in torch.split(pages, 1 << 30):
        part.normal_()
    torch.cuda.synchronize()
    return engine, loaded_s


def _changes(tuning: Tuning) -> str:
    """For a file's name: what is set otherwise than usual."""
    usual, found = asdict(USUAL), asdict(tuning)
    return "".join(f"_{name}_{int(found[name])}" for name in found if found[name] != usual[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", default=",".join(VLLM_MS))
    parser.add_argument("--exact", action="store_true", help="exact mode, for its cost")
    parser.add_argument("--profile", type=Path, help="write a trace of each point into this folder")
    parser.add_argument("--mix", action="store_true", help="1,000 requests offline, too")
    parser.add_argument("--startup", action="store_true", help="starts of new processes, too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="of this code, where it is no checkout of git")
    other = parser.add_argument_group("to compare", "see engine.cuda.tuning")
    other.add_argument("--library-products", action="store_true")
    other.add_argument("--gemv-rows", type=int, default=USUAL.gemv_rows)
    other.add_argument("--ring-kib", type=int, default=USUAL.ring_bytes >> 10)
    other.add_argument("--overlap", type=int, default=USUAL.overlap, choices=(0, 1, 2))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return 1
    torch.manual_seed(0)
    begun = time.perf_counter()
    ceilings = measure_ceilings()
    torch.cuda.empty_cache()
    tuning = Tuning(
        library_products=args.library_products,
        gemv_rows=args.gemv_rows,
        ring_bytes=args.ring_kib << 10,
        overlap=args.overlap,
    )
    figures: dict[str, Any] = {
        "exact": args.exact, "tuning": asdict(tuning), "ceilings": ceilings.rows[0],
    }  # fmt: skip
    if args.startup:  # while nothing else is on the card
        with shape_folder() as folder:
            figures["startup"] = measure_starts(
                folder, device="cuda", dtype="bfloat16", n_pages=N_PAGES, exact=args.exact
            )
    engine, loaded_s = load(args.exact, MIX_PAGES if args.mix else N_PAGES, tuning)
    started = time.perf_counter()
    _check(engine.run(Rows(Point("decode", 1, 128), engine.spec).decode()))
    first_s = time.perf_counter() - started
    print(f"loaded in {loaded_s:.1f} s, first decode step (compiles) {first_s:.1f} s", flush=True)
    rows = []
    for text in filter(None, args.points.split(",")):
        point = Point.parse(text)
        rows.append(measure(engine, point, ceilings.read, ceilings.matmul))
        if args.profile is not None:
            profile(engine, point, args.profile)
    if args.mix:
        figures["mix"] = measure_mix(engine)
    figures |= {
        "load_s": round(loaded_s, 2),
        "first_step_s": round(first_s, 2),
        "took_s": round(time.perf_counter() - begun, 1),
        "points": rows,
    }
    name = "engine" + "_exact" * args.exact + _changes(tuning)
    print("saved", save(name, figures, folder=args.out, commit=args.commit))
    return 0


def profile(engine: Engine, point: Point, folder: Path) -> None:
    """A trace of a few steps, to be opened in a browser (chrome://tracing, Perfetto), and a table
    of where the device's time went."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    folder.mkdir(parents=True, exist_ok=True)
    rows = Rows(point, engine.spec)
    device = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with recording(activities=[ProfilerActivity.CPU, *device]) as trace:
        for _ in range(3):
            work = rows.decode() if point.kind == "decode" else rows.prefill()[0]
            engine.run(work)
    name = f"{point.kind}_{point.rows}x{point.tokens}"
    trace.export_chrome_trace(str(folder / f"{name}.json"))
    table = trace.key_averages().table(sort_by="self_device_time_total", row_limit=16)
    (folder / f"{name}.txt").write_text(table)


if __name__ == "__main__":
    sys.exit(main())
