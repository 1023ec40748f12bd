"""Exact mode: random splits of random prompts in random company give one answer, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from twolane.engine.config import EngineConfig
from twolane.engine.cpu.engine import load_engine
from twolane.engine.cpu.exact_products import TiledProduct, cover
from twolane.engine.step import Engine, Page, RowWork, SampledToken
from twolane.engine.testing import FAMILIES, write_random_model
from twolane.params import SamplingParams

Answer = Callable[..., list[SampledToken]]
N_TOKENS = 5
PAGES_A_ROW = 24


def params_of(i: int) -> SamplingParams:
    """Greedy, plain sampling, and every filter and penalty, by turns."""
    options = (
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    )[i % 3]
    return SamplingParams(seed=i, top_logprobs=3, **options)  # type: ignore[arg-type]  # mixed values


def answer_in_company(
    engine: Engine, prompts: list[list[int]], rng: random.Random
) -> list[list[SampledToken]]:
    """All prompts at once: each step takes random rows, and of each a random number of tokens."""
    order = rng.sample(range(engine.spec.n_pages), PAGES_A_ROW * len(prompts))
    pages = [
        [Page(page) for page in order[i * PAGES_A_ROW : (i + 1) * PAGES_A_ROW]]
        for i in range(len(prompts))
    ]
    tokens, starts = [list(prompt) for prompt in prompts], [0] * len(prompts)
    found: list[list[SampledToken]] = [[] for _ in prompts]
    while live := [i for i in range(len(prompts)) if len(found[i]) < N_TOKENS]:
        work = []
        for i in rng.sample(live, rng.randint(1, len(live))):
            left = len(tokens[i]) - starts[i]
            n_new = rng.choice([left, rng.randint(1, left)])
            done = n_new == left
            work.append(
                RowWork(
                    i, tokens[i], starts[i], n_new, pages[i], len(prompts[i]), params_of(i), done
                )
            )
        for row, result in zip(work, engine.run(work), strict=True):
            assert not result.error, result.error
            starts[row.row] += row.n_new
            found[row.row] += result.tokens
            tokens[row.row] += [token.token for token in result.tokens]
    return found


def some_prompts(rng: random.Random) -> list[list[int]]:
    lengths = [1, 2, 16, 63, 65, rng.randint(66, 128), rng.randint(129, 350), 350]
    return [[rng.randrange(3, 259) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_company_and_chunks_change_no_bit(
    family: str, dtype: str, model_dir: Callable[[str], Path], answer: Answer
) -> None:
    config = EngineConfig(model_dir=model_dir(family), dtype=dtype, exact=True, n_pages=256)
    engine = load_engine(config)
    rng = random.Random(f"{family} {dtype}")
    prompts = some_prompts(rng)
    alone = [answer(engine, p, params_of(i), N_TOKENS) for i, p in enumerate(prompts)]
    for _ in range(3):
        assert answer_in_company(engine, prompts, rng) == alone


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_threads_and_odd_sizes_change_no_bit(
    dtype: str, tmp_path: Path, answer: Answer
) -> None:
    write_random_model(
        tmp_path, "qwen2", seed=4, hidden_size=14 * 24, heads=14, vocab_size=333, layers=1
    )
    config = EngineConfig(model_dir=tmp_path, dtype=dtype, exact=True, n_pages=256, threads=2)
    engine = load_engine(config)
    rng = random.Random(9)
    prompts = some_prompts(rng)[3:7]
    alone = [answer(engine, p, params_of(i), N_TOKENS) for i, p in enumerate(prompts)]
    assert answer_in_company(engine, prompts, rng) == alone


def test_pages_computed_elsewhere_continue_with_the_same_bits(
    model_dir: Callable[[str], Path], answer: Answer
) -> None:
    """Prefill on one engine, copy its pages' bytes to other pages of another, decode there."""
    config = EngineConfig(model_dir=model_dir("mistral"), exact=True, n_pages=48)
    prefill, decode = load_engine(config), load_engine(config)
    prompt, params = [(5 * i) % 250 + 3 for i in range(150)], params_of(1)
    expected = answer(prefill, prompt, params, 4)
    source = [Page(i) for i in range(10)]
    target = [Page(i) for i in range(40, 29, -1)]
    (first,) = answer(prefill, prompt, params, 1, pages=source)
    decode.pool[:] = 0xFF  # NaN wherever nothing was sent
    decode.pool[target[:10]] = prefill.pool[source]
    tokens = [*prompt, first.token]
    found = [first]
    while len(found) < 4:
        work = RowWork(0, tokens, len(tokens) - 1, 1, target, len(prompt), params, True)
        (result,) = decode.run([work])
        found += result.tokens
        tokens += [token.token for token in result.tokens]
    assert found == expected


def test_a_prefix_from_other_rows_pages_changes_no_bit(
    model_dir: Callable[[str], Path], answer: Answer
) -> None:
    engine = load_engine(EngineConfig(model_dir=model_dir("qwen3"), exact=True, n_pages=48))
    prompt, params = [(5 * i) % 250 + 3 for i in range(150)], params_of(1)
    expected = answer(engine, prompt, params, 1)
    answer(engine, prompt[:64] + [9] * 40, params, 1, pages=[Page(i) for i in range(20, 30)])
    shared = [Page(i) for i in (20, 21, 22, 23)] + [Page(i) for i in range(30, 40)]
    work = RowWork(0, prompt, 64, 86, shared, len(prompt), params, True)
    assert list(engine.run([work])[0].tokens) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(96, 64), (333, 200), (1536, 256), (512, 4096)])
def test_a_row_of_a_tiled_product_depends_on_that_row_alone(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    source = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=source).to(dtype)
    x = torch.randn(300, shape[1], generator=source).to(dtype)
    product = TiledProduct()
    product.probe(weight)
    whole = product(x, weight)
    assert torch.allclose(whole.float(), (x @ weight.t()).float(), rtol=0.02, atol=0.02)
    for rows in (1, 2, 3, 4, 5, 15, 16, 17, 33, 100, 299):
        some = torch.randperm(300, generator=source)[:rows]
        assert torch.equal(product(x[some], weight), whole[some]), rows


def test_a_rest_of_rows_is_one_tile_where_its_height_costs_nothing() -> None:
    heights = (512, 256, 160, 64, 16)
    assert cover(150, heights, 0) == [160]
    assert cover(140, heights, 0) == [64, 64, 16]
    assert cover(140, heights, 256) == [160]
    assert cover(170, heights, 256) == [256]
    assert cover(530, heights, 256) == [512, 64]
    assert cover(700, (2048, 512, 320), 256) == [512, 320], "no multiples of the least height"
    assert cover(5, heights, 256) == cover(5, heights, 0) == [16]
    assert cover(37, (32, 16, 8, 4), 0) == [32, 8]
    for rows in range(1, 1200):
        assert rows <= sum(cover(rows, heights, 256)) < rows + 256
        assert rows <= sum(cover(rows, heights, 0)) < rows + 16


@pytest.mark.parametrize("tallest", [12, 16])
def test_another_product_of_few_rows_is_used_only_with_the_bits_of_tall_tiles(tallest: int) -> None:
    """Whether or not what is probed is so many times as tall."""

    def alike(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([x, x.new_zeros(16 - len(x), x.shape[1])])
        return torch.mm(padded, weight.t())[: len(x)]

    def backwards(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return alike(x.flip(1), weight.flip(1))

    def by_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return alike(x, weight) if len(x) > 8 else backwards(x, weight)

    weight = torch.randn(48, 1000)
    for few, is_taken in ((alike, True), (backwards, False), (by_rows, False), (None, False)):
        tiled = TiledProduct()
        tiled.probe(weight, few, (4, 8, tallest))
        assert tiled.takes_few(weight) == is_taken
        assert torch.equal(
            tiled(torch.ones(3, 1000), weight)[0], tiled(torch.ones(99, 1000), weight)[7]
        )
    assert not tiled.takes_few(torch.randn(48, 999)), "not probed"
