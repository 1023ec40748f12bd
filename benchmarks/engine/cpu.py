"""Tokens per second of the CPU engine, exact and not, on a small model with random weights.

    python -m benchmarks.engine.cpu [--seconds 1.0] [--threads 1] [--hidden 256] [--layers 6]
                                    [--vocab 4096] [--context 256] [--json out.json]

Prefill: prompts of `context` tokens, 1, 8 or 32 of them packed into one step. Decode: one token per
row at that context. Greedy. Steps of each kind alternate; the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from twolane.engine.config import DTYPES, EngineConfig
from twolane.engine.cpu.engine import CpuEngine, load_engine
from twolane.engine.step import Page, RowWork
from twolane.params import SamplingParams

BATCHES = (1, 8, 32)
GREEDY = SamplingParams(temperature=0.0)


def write_config(model_dir: Path, hidden: int, layers: int, vocab: int) -> None:
    """The shape of a small Llama, with heads of 64 in pairs; its weights come from a seed."""
    facts = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    (model_dir / "config.json").write_text(json.dumps(facts))


def rows_of(engine: CpuEngine, batch: int, context: int, n_new: int) -> list[RowWork]:
    """`batch` rows of `context` tokens whose last `n_new` are computed in the step."""
    pages_a_row = -(-context // engine.spec.page_tokens)
    return [
        RowWork(
            row=i,
            token_ids=[(7 * i + 3 * j) % engine.spec.vocab_size for j in range(context)],
            start=context - n_new,
            n_new=n_new,
            pages=[Page(i * pages_a_row + j) for j in range(pages_a_row)],
            n_prompt=context,
            params=GREEDY,
            sample=True,
        )
        for i in range(batch)
    ]


def measure(
    engines: Mapping[str, CpuEngine], context: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Tokens per second by label, then kind and batch size.

    The engines alternate, so that a busy moment of the machine affects all of them; for each the
    fastest of at least three steps counts.
    """
    found: dict[str, dict[str, float]] = {label: {} for label in engines}
    for kind, n_new in (("prefill", context), ("decode", 1)):
        for batch in BATCHES:
            times: dict[str, list[float]] = {label: [] for label in engines}
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(times[next(iter(engines))]) < 3:
                for label, engine in engines.items():
                    rows = rows_of(engine, batch, context, n_new)
                    start = time.perf_counter()
                    results = engine.run(rows)
                    times[label].append(time.perf_counter() - start)
                    assert not any(result.error for result in results), results
            for label, all_s in times.items():
                found[label][f"{kind} {batch}"] = batch * n_new / min(all_s)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    report: dict[str, object] = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "options": {k: v for k, v in vars(args).items() if k != "json"},
    }
    with tempfile.TemporaryDirectory() as name:
        model_dir = Path(name)
        write_config(model_dir, args.hidden, args.layers, args.vocab)
        for dtype in DTYPES:
            base = EngineConfig(
                model_dir=model_dir, dtype=dtype, threads=args.threads, load_format="random"
            )
            engines = {
                f"{dtype} plain": load_engine(replace(base, exact=False)),
                f"{dtype} exact": load_engine(replace(base, exact=True)),
            }
            for label, found in measure(engines, args.context, args.seconds).items():
                report[label] = found
                print(label.ljust(16), *(f"{k}: {v:,.0f}" for k, v in found.items()), sep="  ")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
