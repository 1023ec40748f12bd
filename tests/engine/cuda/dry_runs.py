"""Do dry runs cover the kernel variants of real steps? Runs in a process without the interpreter,
which has no variants; there is no card either, tensors are on `meta`.

    python dry_runs.py             JSON by engine: kernels covered, and those that random steps
                                   need besides; and whether dry runs import sympy
    python dry_runs.py compiled    JSON: kernels compiled ahead, and those compiled by random steps
                                   afterwards, for a small engine
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from triton.runtime.driver import driver

from tests.engine.kernels.builds import TARGET, launch_of, variant
from twolane.engine.config import EngineConfig
from twolane.engine.cuda.inputs import InputShape
from twolane.engine.cuda.packing import pack_mixed
from twolane.engine.cuda.plans import (
    MAX_ROWS,
    PROMPT_BUCKETS,
    PROMPTS,
    bucket_for,
    prompt_bucket_for,
)
from twolane.engine.cuda.shares import Pass, split_passes
from twolane.engine.cuda.startup import step_shapes
from twolane.engine.cuda.startup.blueprint import Blueprint
from twolane.engine.cuda.startup.dry_run import Stage, dry_run_launches
from twolane.engine.cuda.startup.step_shapes import StepShapes
from twolane.engine.cuda.tuning import DEFAULT_TUNING
from twolane.engine.kernels.compile_ahead import CompileAhead, each_variant_once
from twolane.engine.kernels.launch import Card, Take, dry_running
from twolane.engine.model_files.architecture import read_architecture
from twolane.engine.model_files.shard import Shard
from twolane.engine.step import Page, RowWork
from twolane.params import SamplingParams

H200 = Card(cores=132, is_hopper=True)
USUALLY = StepShapes(rows=256, tokens=8192)
STEPS = 40
EVERY_CLASS = (5, 11, 23, 47, 75, 90, 111, 150, 180)  # decode rows beside a chunk, all sampled
FORGOTTEN = {f"qwen3, {n} rows forgotten": n for n in (32, 96)}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128_256, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}  # fmt: skip
QWEN2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18_944,
    "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
    "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 3,
}  # fmt: skip
QWEN3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
SMALL = LLAMA | {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "num_hidden_layers": 2,
}  # fmt: skip
FP8: dict[str, Any] = {"weights": "fp8"}
ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "llama exact": (LLAMA, {"exact": True}),
    "llama fp8 weights": (LLAMA, FP8),
    "llama fp8 pages": (LLAMA, {"kv_dtype": "fp8"}),
    "llama fp8 pages exact": (LLAMA, {"kv_dtype": "fp8", "exact": True}),
    "llama fp8": (LLAMA, FP8 | {"kv_dtype": "fp8"}),
    "llama float32": (LLAMA, {"dtype": "float32"}),
    "llama of 2": (LLAMA, {"tensor_parallel": 2}),
    "llama of 4 fp8": (LLAMA, FP8 | {"tensor_parallel": 4}),
    "llama of 2 library": (LLAMA, {"tensor_parallel": 2, "peer_all_reduce": False}),
    "qwen2": (QWEN2, {}),
    "qwen3": (QWEN3, {}),
    "small": (SMALL, {}),
}


def blueprint(facts: dict[str, Any], options: dict[str, Any]) -> Blueprint:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(facts))
        arch = read_architecture(Path(folder))
    usual: dict[str, Any] = {
        "dtype": "bfloat16", "device": "cuda", "exact": False, "max_context_tokens": 16_384,
    }  # fmt: skip
    config = EngineConfig(model_dir=Path(), **usual | options)
    ranks = config.tensor_parallel
    return Blueprint(
        config=config, arch=arch, shard=Shard(ranks - 1, ranks), fp8=config.weights == "fp8",
        tuning=DEFAULT_TUNING,
    )  # fmt: skip


def random_steps(seed: int) -> Iterator[list[RowWork]]:
    """Within what is usual: decode rows, chunks of any size, or both. Then each class of rows."""
    draw = random.Random(seed)
    for _ in range(STEPS):
        n_decode = draw.choice([0, 0, 1, 2, draw.randrange(17), draw.randrange(257)])
        room = draw.choice([1, 30, 200, 1000, USUALLY.tokens]) - n_decode
        work = [_row(draw, i, draw.randrange(1, 8000), 1, 1, sample=True) for i in range(n_decode)]
        while room > 1 and len(work) < MAX_ROWS and (not n_decode or draw.random() < 0.8):
            n_new = draw.choice([draw.randrange(2, 9), draw.randrange(2, 300), room])
            n_new = min(n_new, room)
            start = draw.choice([0, draw.randrange(8000)])
            n_prompt = start + n_new
            work.append(_row(draw, len(work), start, n_new, n_prompt, sample=draw.random() < 0.5))
            room -= n_new
        if work:
            draw.shuffle(work)
            yield work
    for n in EVERY_CLASS:
        rows = [_row(draw, i, 100, 1, 1, sample=True) for i in range(n)]
        yield [*rows, _row(draw, n, 0, 2, 2, sample=True)]


def _row(
    draw: random.Random, name: int, start: int, n_new: int, n_prompt: int, *, sample: bool
) -> RowWork:
    end = start + n_new
    pages = [Page(draw.randrange(4000)) for _ in range(-(-end // 64))]
    return RowWork(name, [0] * end, start, n_new, pages, n_prompt, SamplingParams(), sample)


def run_steps(made: Blueprint, take: Take) -> None:
    """Random ones, as the engine cuts and packs them. It takes short prompts apart from rows of
    answers, where both have graphs: those are taken by themselves here, too."""
    with dry_running(H200, take):
        stage = Stage(made)
        for work in random_steps(seed=3):
            passes = split_passes(
                list(enumerate(work)), exact=made.config.exact, most_rows=MAX_ROWS
            )
            for what in passes:
                n_decode = len(what.decode)
                tokens = _bucket_of_prompts(what, exact=made.config.exact)
                if tokens is not None and stage.may_graph_prompts:
                    stage.prompts(tokens)
                elif what.chunks:
                    packed = pack_mixed(
                        what, {}, windows=stage.windows, block_tokens=stage.block_tokens,
                        table_pages=made.table_pages, page_tokens=made.page_tokens, pinned=False,
                    )  # fmt: skip
                    stage.run(packed.shape, n_decode)
                else:
                    n = bucket_for(n_decode)
                    stage.run(InputShape(n, n, n, made.table_pages), n)
        stage.refine()
        stage.move_pages()


def _bucket_of_prompts(what: Pass, *, exact: bool) -> int | None:
    if what.decode or len(what.chunks) > PROMPTS:
        return None
    tokens = sum(share.n_new for share in what.chunks)
    return prompt_bucket_for(tokens, PROMPT_BUCKETS[-1], exact=exact)


class Variants:
    """A `Take` that keeps them apart."""

    def __init__(self) -> None:
        self.n_taken = 0
        self.found: set[str] = set()

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.n_taken += 1
        self.found.add(variant(launch_of(kernel, arguments, options)))


def coverage(name: str) -> dict[str, Any]:
    made = blueprint(*ENGINES[name])
    covered, asked = Variants(), Variants()
    dry_run_launches(made, USUALLY, H200, each_variant_once(covered))
    run_steps(made, asked)
    missing = sorted(asked.found - covered.found)
    return {
        "covered": len(covered.found),
        "taken": covered.n_taken,
        "launches": asked.n_taken,
        "never_asked": len(covered.found - asked.found),
        "missing": missing,
    }


class _Driver:
    """As much of Triton's as compiling takes."""

    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: TARGET)
    launcher_cls = staticmethod(lambda src, metadata: None)


def compiled() -> dict[str, Any]:
    """Of a small exact engine of float32, which has few kernels, really compiled."""
    made = blueprint(SMALL, {"exact": True, "dtype": "float32"})
    seen: list[str] = []
    driver.set_active(_Driver())
    triton.knobs.runtime.jit_post_compile_hook = lambda **facts: seen.append(facts["repr"])
    loaded = mock.patch.object(triton.compiler.CompiledKernel, "run", None)
    counts: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as cache, loaded, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache

        def dry_run(take: Take) -> None:
            dry_run_launches(made, USUALLY, H200, each_variant_once(take))

        with CompileAhead(dry_run, processes=2) as ahead:
            ahead.wait(lambda done, of: counts.append((done, of)))
        n_ahead = len(seen)
        run_steps(
            made,
            lambda kernel, grid, *arguments, **options: kernel.warmup(
                *arguments, grid=grid, **options
            ),
        )
    return {"ahead": n_ahead, "counts": counts[-1], "afterwards": seen[n_ahead:]}


def library_calls(name: str) -> list[tuple[str, int, int, int]]:
    """Of a dry run: function, rows, outputs and inputs of each product of the library."""
    found: set[tuple[str, int, int, int]] = set()

    def take_call(function: Any, x: Any, weight: Any, *others: Any, **options: Any) -> None:
        found.add((function.__name__, len(x), *weight.shape))

    made = blueprint(*ENGINES[name])
    dry_run_launches(made, USUALLY, H200, lambda *arguments, **options: None, take_call)
    return sorted(found)


def main() -> None:
    if sys.argv[1:] == ["compiled"]:
        print(json.dumps(compiled()))
        return
    driver.set_active(_Driver())
    calls = {name: library_calls(name) for name in ENGINES}
    imports_sympy = "sympy" in sys.modules
    report = {name: coverage(name) for name in ENGINES}
    for name, rows in FORGOTTEN.items():
        fewer = tuple(n for n in step_shapes.CLASSES if n != rows)
        with mock.patch.object(step_shapes, "CLASSES", fewer):
            report[name] = coverage("qwen3")
    print(json.dumps({"imports_sympy": imports_sympy, "calls": calls, "engines": report}))


if __name__ == "__main__":
    main()
