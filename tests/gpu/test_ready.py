"""A ready engine neither compiles nor captures any more, whatever its steps are like."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

import triton

from twolane.engine.config import EngineConfig
from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.startup.load import load_cuda_engine
from twolane.engine.step import Page, RowWork
from twolane.engine.testing import write_random_model
from twolane.params import SamplingParams

pytestmark = pytest.mark.gpu

ROWS, TOKENS, PAGES = 40, 8192, 1000
PLAIN = SamplingParams(temperature=0.0, ignore_eos=True)
WARM = SamplingParams(temperature=0.8, seed=5, top_logprobs=2)
PENALISED = SamplingParams(
    temperature=0.9, seed=4, top_p=0.9, top_k=30, repetition_penalty=1.3, frequency_penalty=0.2,
    min_tokens=2, logit_bias={9: 2.0},
)  # fmt: skip


def steps(draw: random.Random) -> Iterator[list[RowWork]]:
    """Chunks of 1 to TOKENS tokens, alone, in company and beside decode rows."""
    for n in (1, 2, 3, 17, 64, 65, 128, 129, 500, 512, 513, 1000, 2049, 4000, TOKENS):
        yield [chunk(0, n, 0)]
        n_decode = draw.randrange(ROWS)
        if n + n_decode < TOKENS:
            params = draw.choice([PLAIN, WARM, PENALISED])
            decode = [decode_row(i + 1, params) for i in range(n_decode)]
            yield [*decode, chunk(0, n, draw.randrange(200))]
    for n in (1, 17, ROWS):
        yield [decode_row(i, PLAIN) for i in range(n)]
    for n in range(1, ROWS + 1):
        yield [decode_row(i, draw.choice([PLAIN, WARM])) for i in range(n)]


def chunk(row: int, n: int, start: int) -> RowWork:
    end = start + n
    pages = [Page(i) for i in range(-(-end // 64))]
    return RowWork(row, [3] * end, start, n, pages, end, PLAIN, True)


def decode_row(row: int, params: SamplingParams) -> RowWork:
    pages = [Page(500 + 4 * row + i) for i in range(4)]
    return RowWork(row, [5] * 201, 200, 1, pages, 150, params, True)


@pytest.mark.parametrize(
    "options",
    [{}, {"exact": True}, {"weights": "fp8", "kv_dtype": "fp8"}],
    ids=["usual", "exact", "fp8"],
)
def test_a_ready_engine_compiles_and_captures_nothing(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_random_model(
        tmp_path / "model", "llama", seed=1, hidden_size=512, heads=8, kv_heads=2, head_dim=64,
        dtype="bfloat16", max_position_embeddings=16_384,
    )  # fmt: skip
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime,
        "jit_post_compile_hook",
        lambda **facts: compiled.append(facts["repr"]),
    )
    usual: dict[str, Any] = {"dtype": "bfloat16", "exact": False, "device": "cuda"}
    config = EngineConfig(
        model_dir=model, n_pages=PAGES, ready_rows=ROWS, ready_tokens=TOKENS, **usual | options
    )
    with monkeypatch.context() as patched:
        patched.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
        engine = load_cuda_engine(config)
    try:
        assert compiled
        compiled.clear()
        captured = set(engine._graphs._captured)
        _take(engine, steps(random.Random(2)))
        assert compiled == []
        assert set(engine._graphs._captured) == captured
    finally:
        engine.close()


def _take(engine: CudaEngine, work: Iterator[list[RowWork]]) -> None:
    n_launched = 0
    for step in work:
        is_launched = all(row.start >= row.n_prompt and row.params is PLAIN for row in step)
        assert engine.only_launches(step) == is_launched
        n_launched += is_launched
        assert {result.error for result in engine.run(step)} == {""}
    assert n_launched
