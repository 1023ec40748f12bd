"""Time from the command to the first token of an engine, in a new process.

    command ---> imported ---> loaded ---> ready ---> first_token ---> decoding    printed as they
    |<------------- ready_s -------------->|          |                            come
    |<--------------- first_token_s ----------------->|

Cold: Triton's cache is empty. Warm: it has what the cold start compiled. Once ready, an engine has
compiled and captured everything that a worker's expected steps need.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

STAGES = ("imported", "loaded", "ready", "first_token", "decoding")
PROMPT_TOKENS = 512
VLLM_COLD_S = 111.0  # vLLM 0.24 on an H200
ROOT = Path(__file__).parents[2]


def measure_starts(
    model_dir: Path, *, device: str, dtype: str, n_pages: int, exact: bool, n_warm: int = 2
) -> dict[str, Any]:
    """Start once with an empty cache, then `n_warm` times with the cache of the first start."""
    with tempfile.TemporaryDirectory() as cache:
        options = ["--device", device, "--dtype", dtype, "--pages", str(n_pages)]
        options += ["--exact"] * exact
        starts = [start_once(model_dir, options, Path(cache)) for _ in range(1 + n_warm)]
    cold, *warm = starts
    found = {
        "cold": cold,
        "warm": warm,
        "cold_ready_s": cold["ready_s"],
        "warm_ready_s": round(median(start["ready_s"] for start in warm), 2),
        "cold_s": cold["first_token_s"],
        "warm_s": round(median(start["first_token_s"] for start in warm), 2),
        "vllm_cold_s": VLLM_COLD_S,
    }
    for what, suffix in (("ready", "_ready_s"), ("first token", "_s")):
        cold_s, warm_s = found[f"cold{suffix}"], found[f"warm{suffix}"]
        print(f"{what} after {cold_s} s cold, {warm_s} s warm", flush=True)
    return found


def start_once(model_dir: Path, options: list[str], cache: Path) -> dict[str, float]:
    """The times of one start, in seconds. `cache`: Triton's."""
    command = [sys.executable, "-m", "benchmarks.engine.start", str(model_dir), *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": path}
    began = time.perf_counter()
    times: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() in STAGES:
                times[f"{line.strip()}_s"] = round(time.perf_counter() - began, 2)
    if child.returncode or len(times) != len(STAGES):
        raise RuntimeError(f"{command} ended with {child.returncode} after {times}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="Start, say so, answer two tokens, end.")
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--pages", type=int, required=True)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--load-format", choices=("random", "safetensors"), default="random")
    parser.add_argument("--ready-rows", type=int, default=256, help="what a worker takes")
    parser.add_argument("--ready-tokens", type=int, default=2048)
    args = parser.parse_args()

    if args.device == "cuda":  # as a worker does
        from twolane.engine.cuda.startup.imports import import_engine

        import_engine()
    from twolane.engine.config import EngineConfig
    from twolane.engine.load import load_engine
    from twolane.engine.progress import Loaded, Readied
    from twolane.engine.step import Page, RowWork
    from twolane.params import SamplingParams

    def tell_loaded(news: Loaded | Readied) -> None:
        if isinstance(news, Loaded) and news.is_last:
            print("loaded", flush=True)

    print("imported", flush=True)
    engine = load_engine(
        EngineConfig(
            model_dir=args.model_dir, device=args.device, dtype=args.dtype, n_pages=args.pages,
            exact=args.exact, load_format=args.load_format, ready_rows=args.ready_rows,
            ready_tokens=args.ready_tokens,
        ),
        progress=tell_loaded,
    )  # fmt: skip
    print("ready", flush=True)
    tokens = [3 + i % (engine.spec.vocab_size - 3) for i in range(PROMPT_TOKENS)]
    pages = [Page(i) for i in range(-(-(PROMPT_TOKENS + 1) // engine.spec.page_tokens))]
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    for start, stage in ((0, "first_token"), (PROMPT_TOKENS, "decoding")):
        n_new = len(tokens) - start
        (result,) = engine.run(
            [RowWork(1, tokens, start, n_new, pages, PROMPT_TOKENS, params, True)]
        )
        assert not result.error, result.error
        tokens.append(result.tokens[0].token)
        print(stage, flush=True)
    engine.close()


if __name__ == "__main__":
    main()
