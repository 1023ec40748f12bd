"""Exact mode on a card, in bf16: a row's bits are its own, whatever happens around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

import torch

from tests.gpu.rows import PAGES_A_ROW, Row, answer_all, engine_of, params_of, prompt_of
from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.memory import tensor_of
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.engine.kernels.products.few_rows import few_rows_product
from twolane.engine.kernels.products.few_rows_plan import pad_rows
from twolane.engine.kernels.products.row_padding import padded_empty
from twolane.engine.step import Page, SampledToken
from twolane.engine.testing import write_random_model

pytestmark = pytest.mark.gpu

N_ROWS, CROWD, N_TOKENS = 500, 50, 8
EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 500, 700, 895, 896, 1000)


@pytest.fixture(scope="module")
def exact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 128, as the largest models have them, and four to a group."""
    return write_random_model(
        tmp_path_factory.mktemp("exact"), "llama", seed=2, hidden_size=512, heads=8, kv_heads=2,
        head_dim=128, vocab_size=1000,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared(exact_dir: Path, cards_of_module: None) -> Iterator[CudaEngine]:
    made = engine_of(exact_dir, dtype="bfloat16", exact=True, n_pages=(CROWD + 1) * PAGES_A_ROW)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(shared: CudaEngine) -> list[list[SampledToken]]:
    """What each row answers when nothing else is there, its prompt in one chunk."""
    rows = all_rows()
    for row in rows:
        answer_all(shared, [row], N_TOKENS, chunk=lambda: 1 << 20, ahead=False)
    return [row.found for row in rows]


@pytest.fixture
def engine(shared: CudaEngine, alone: list[list[SampledToken]]) -> CudaEngine:
    """With NaN wherever nothing is written by the test itself."""
    poison(shared)
    return shared


def poison(engine: CudaEngine) -> None:
    assert engine.device_pool is not None
    tensor_of(engine.device_pool).fill_(0xFF)
    torch.cuda.synchronize()


def all_rows() -> list[Row]:
    """Lengths around every edge, then at random; half of the prompts begin alike."""
    source = random.Random(3)
    lengths = [*EDGES, *(source.randrange(1, 500) for _ in range(N_ROWS))][:N_ROWS]
    alike = prompt_of(1000)
    prompts = [alike[:size] if i % 2 else prompt_of(size) for i, size in enumerate(lengths)]
    return [Row(i % CROWD, prompt, params_of(i)) for i, prompt in enumerate(prompts)]


def crowds(rows: list[Row]) -> Iterator[list[Row]]:
    """So many at a time that each has pages of its own."""
    for at in range(0, len(rows), CROWD):
        yield rows[at : at + CROWD]


def different(rows: list[Row], expected: list[list[SampledToken]]) -> list[int]:
    return [i for i, row in enumerate(rows) if row.found != expected[i]]


def test_company_order_chunks_and_steps_ahead_change_no_bit(
    engine: CudaEngine, alone: list[list[SampledToken]]
) -> None:
    source = random.Random(7)
    rows = all_rows()
    for crowd in crowds(rows):
        source.shuffle(crowd)
        answer_all(engine, crowd, N_TOKENS, chunk=lambda: source.randrange(1, 300))
    assert different(rows, alone) == []


def test_prefix_hits_change_no_bit(engine: CudaEngine, alone: list[list[SampledToken]]) -> None:
    """Rows begin behind full pages that another row's chunks wrote."""
    first = Row(CROWD, prompt_of(1000), params_of(0))
    answer_all(engine, [first], 1, chunk=lambda: 77)
    rows = all_rows()
    for row in rows[1::2]:
        n_shared = (len(row.prompt) - 1) // 64
        row.pages[:n_shared] = first.pages[:n_shared]
        row.done = n_shared * 64
    for crowd in crowds(rows):
        answer_all(engine, crowd, N_TOKENS, chunk=lambda: 100)
    assert different(rows, alone) == []


def test_a_resume_at_any_token_changes_no_bit(
    engine: CudaEngine, alone: list[list[SampledToken]]
) -> None:
    """From the prompt and the tokens so far, into pages that hold nothing, to the last token."""
    source = random.Random(9)
    rows = all_rows()
    for row, found in zip(rows, alone, strict=True):
        row.found = found[: source.randrange(1, N_TOKENS)]
        row.tokens += [token.token for token in row.found]
    for crowd in crowds(rows):
        answer_all(engine, crowd, N_TOKENS, chunk=lambda: source.choice([40, 1 << 20]))
        poison(engine)
    assert different(rows, alone) == []


def test_pages_handed_to_another_instance_change_no_bit(
    engine: CudaEngine, exact_dir: Path, alone: list[list[SampledToken]]
) -> None:
    decode = engine_of(exact_dir, dtype="bfloat16", exact=True, n_pages=engine.spec.n_pages)
    assert engine.device_pool is not None
    assert decode.device_pool is not None
    rows = all_rows()
    for crowd in crowds(rows):
        answer_all(engine, crowd, 1, chunk=lambda: 150)
        poison(decode)
        order = torch.randperm(CROWD * PAGES_A_ROW).tolist()
        for i, row in enumerate(crowd):
            n_pages = -(-len(row.prompt) // 64)
            source = torch.tensor(row.pages[:n_pages], dtype=torch.int32, device="cuda")
            row.pages = [Page(p) for p in order[i * PAGES_A_ROW : (i + 1) * PAGES_A_ROW]]
            target = torch.tensor(row.pages[:n_pages], dtype=torch.int32, device="cuda")
            copy_pages(
                engine.device_pool.addresses[0], decode.device_pool.addresses[0], source, target,
                page_bytes=decode.spec.page_bytes,
            )  # fmt: skip
        torch.cuda.synchronize()
        answer_all(decode, crowd, N_TOKENS, chunk=lambda: 1)
    assert different(rows, alone) == []
    decode.close()


@pytest.mark.parametrize(
    ("outer", "inner"), [(6144, 4096), (4096, 14336), (28672, 4096), (1000, 912)]
)
def test_few_rows_are_streamed_with_the_bits_of_the_librarys_tiles(
    outer: int, inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows than those that were probed, and what is behind them is NaN."""
    import twolane.engine.cuda.products as module

    streamed: list[int] = []

    def noting(x: torch.Tensor, *args: object, **options: object) -> None:
        streamed.append(len(x))
        few_rows_product(x, *args, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(module, "few_rows_product", noting)
    products = module.Products(exact=True)
    weight = torch.randn(outer, inner, device="cuda").bfloat16() / inner**0.5
    products.probe(weight)
    streamed.clear()
    x = torch.randn(2048, inner, device="cuda").bfloat16()
    whole = products(x, weight, None, pdl=0)
    sizes = (1, 8, 13, 32, 50, 64, 65, 80, 90, 96, 97, 128, 140, 160)
    for n in sizes:
        few = padded_empty(x, n, inner)
        few.as_strided((pad_rows(n), inner), (inner, 1)).fill_(torch.nan)
        few.copy_(x[n : 2 * n])
        assert torch.equal(products(few, weight, None, pdl=0), whole[n : 2 * n]), n
    assert streamed == list(sizes)
    for n in (161, 192, 200, 300):
        assert torch.equal(products(x[:n], weight, None, pdl=0), whole[:n]), n
    assert streamed == list(sizes)
