"""Exact mode on a card, in bf16: a row's bits are its own, whatever happens around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from engine.cuda.engine import CudaEngine
from engine.cuda.memory import tensor_of
from engine.kernels.page_copy import copy_pages
from engine.step import Page, RowWork, SampledToken
from engine.testing import write_random_model
from tests.gpu.rows import PAGES_A_ROW, Row, answer_all, engine_of, params_of, prompt_of

pytestmark = pytest.mark.gpu

N_ROWS, CROWD, N_TOKENS = 500, 50, 8
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 500, 700)


@pytest.fixture(scope="module")
def exact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 128, as the largest models have them, and four to a group."""
    return write_random_model(
        tmp_path_factory.mktemp("exact"), "llama", seed=2, hidden_size=512, heads=8, kv_heads=2,
        head_dim=128, vocab_size=1000,
    )  # fmt: skip


@pytest.fixture
def engine(exact_dir: Path) -> Iterator[CudaEngine]:
    made = engine_of(exact_dir, dtype="bfloat16", exact=True, n_pages=(CROWD + 1) * PAGES_A_ROW)
    yield made
    made.close()


def all_rows(n: int = N_ROWS) -> list[Row]:
    """Lengths around every edge, then at random; half of the prompts begin alike."""
    source = random.Random(3)
    lengths = [*EDGES, *(source.randrange(1, 500) for _ in range(n))][:n]
    alike = prompt_of(1000)
    prompts = [alike[:size] if i % 2 else prompt_of(size) for i, size in enumerate(lengths)]
    return [Row(i % CROWD, prompt, params_of(i)) for i, prompt in enumerate(prompts)]


def answers_alone(engine: CudaEngine, rows: list[Row]) -> list[list[SampledToken]]:
    for row in rows:
        answer_all(engine, [row], N_TOKENS, chunk=lambda: 1 << 20, ahead=False)
    return [row.found for row in rows]


def test_company_order_chunks_and_steps_ahead_change_no_bit(engine: CudaEngine) -> None:
    expected = answers_alone(engine, all_rows())
    source = random.Random(7)
    rows = all_rows()
    for at in range(0, N_ROWS, CROWD):
        crowd = rows[at : at + CROWD]
        source.shuffle(crowd)
        answer_all(engine, crowd, N_TOKENS, chunk=lambda: source.randrange(1, 300))
    assert [i for i in range(N_ROWS) if rows[i].found != expected[i]] == []


def test_prefix_hits_change_no_bit(engine: CudaEngine) -> None:
    """Rows begin behind full pages that another row's chunks wrote."""
    expected = answers_alone(engine, all_rows(100))
    first = Row(CROWD, prompt_of(1000), params_of(0))
    answer_all(engine, [first], 1, chunk=lambda: 77)
    rows = all_rows(100)
    for row in rows[1::2]:
        n_shared = (len(row.prompt) - 1) // 64
        row.pages[:n_shared] = first.pages[:n_shared]
        row.done = n_shared * 64
    for at in range(0, 100, CROWD):
        answer_all(engine, rows[at : at + CROWD], N_TOKENS, chunk=lambda: 100)
    assert [i for i, row in enumerate(rows) if row.found != expected[i]] == []


def test_a_resume_at_any_token_changes_no_bit(engine: CudaEngine) -> None:
    rows = all_rows(60)
    expected = answers_alone(engine, rows)
    source = random.Random(9)
    for row, found in zip(rows, expected, strict=True):
        known = source.randrange(1, N_TOKENS)
        tokens = row.tokens[: len(row.prompt) + known]
        work = RowWork(
            row.name, tokens, 0, len(tokens), row.pages, len(row.prompt), row.params, True
        )
        (result,) = engine.run([work])
        assert result.tokens == (found[known],), (len(row.prompt), known)


def test_pages_handed_to_another_instance_change_no_bit(
    engine: CudaEngine, exact_dir: Path
) -> None:
    decode = engine_of(exact_dir, dtype="bfloat16", exact=True, n_pages=engine.spec.n_pages)
    assert engine.device_pool is not None
    assert decode.device_pool is not None
    expected = answers_alone(engine, all_rows(CROWD))
    rows = all_rows(CROWD)
    answer_all(engine, rows, 1, chunk=lambda: 150)
    tensor_of(decode.device_pool).fill_(0xFF)  # NaN wherever nothing is sent
    order = torch.randperm(CROWD * PAGES_A_ROW).tolist()
    for i, row in enumerate(rows):
        n_pages = -(-len(row.prompt) // 64)
        source = torch.tensor(row.pages[:n_pages], dtype=torch.int32, device="cuda")
        row.pages = [Page(p) for p in order[i * PAGES_A_ROW : (i + 1) * PAGES_A_ROW]]
        target = torch.tensor(row.pages[:n_pages], dtype=torch.int32, device="cuda")
        copy_pages(
            engine.device_pool.address, decode.device_pool.address, source, target,
            page_bytes=decode.spec.page_bytes,
        )  # fmt: skip
    torch.cuda.synchronize()
    answer_all(decode, rows, N_TOKENS, chunk=lambda: 1)
    assert [i for i, row in enumerate(rows) if row.found != expected[i]] == []
    decode.close()
