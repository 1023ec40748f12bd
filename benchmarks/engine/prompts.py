"""Prefill of prompts of up to 2,048 tokens on this GPU: as graphs, and launch by launch.

    python -m benchmarks.engine.prompts [--points prefill:1x128,prefill:4x128]

A random 8B model, bf16, usual and exact; the two ways take turns. For each point: the time from
submission to the first tokens, and how much of it the host needs to submit.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch

from benchmarks.engine.points import LLAMA_8B, PAGE_TOKENS, Point, Rows, checked
from benchmarks.engine.steps import shape_folder
from benchmarks.result_options import add_result_options
from benchmarks.results import save
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.plans import PROMPT_BUCKETS
from twolane.engine.cuda.startup.load import load_cuda_engine

POINTS = (
    "1x16,1x32,1x64,1x128,4x32,1x192,1x256,1x320,1x384,4x96,1x500,1x512,1x600,1x640,1x1000,1x1024,"
    "1x1300,1x1536,2x1024,1x2048"
)
ROUNDS = 15
N_PAGES = 1000
WAYS = {"graph": PROMPT_BUCKETS[-1], "launches": 0}  # tokens of the longest pass that is a graph


def measure(engine: CudaEngine, point: Point) -> dict[str, Any]:
    """Times of both ways, in milliseconds; each is run once before."""
    rows = Rows(point, engine.spec)
    (work,) = rows.prefill()
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(1 + ROUNDS):
        for way, tokens in WAYS.items():
            engine.graphed_tokens = tokens
            torch.cuda.synchronize()
            began = time.perf_counter()
            step = engine.submit(work)
            submitted = time.perf_counter()
            checked(step.result())
            times[way].append((time.perf_counter() - began, submitted - began))
    found: dict[str, Any] = {"name": f"{point.rows}x{point.tokens}"}
    for way, both in times.items():
        whole, submit = ([t * 1e3 for t in each] for each in zip(*both[1:], strict=True))
        found |= {
            f"{way}_ms": round(median(whole), 3),
            f"{way}_best_ms": round(min(whole), 3),
            f"{way}_submit_ms": round(median(submit), 3),
        }
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", default=POINTS)
    add_result_options(parser)
    args = parser.parse_args()
    points = [Point.parse(f"prefill:{text}") for text in args.points.split(",")]
    figures: dict[str, Any] = {"rounds": ROUNDS}
    for mode in ("usual", "exact"):
        with shape_folder(LLAMA_8B) as folder:
            config = EngineConfig(
                model_dir=folder, dtype="bfloat16", load_format="random", device="cuda",
                exact=mode == "exact", n_pages=N_PAGES, page_tokens=PAGE_TOKENS, ready_rows=1,
                ready_tokens=2048,
            )  # fmt: skip
            engine = load_cuda_engine(config)
        figures[mode] = [measure(engine, point) for point in points]
        engine.close()
        del engine
        torch.cuda.empty_cache()
    print("saved", save("short_prompts", figures, folder=args.folder, commit=args.commit))


if __name__ == "__main__":
    main()
