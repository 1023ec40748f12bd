"""FP8 weights and pages on a card: kernels against float64, engines against wide ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from tests.gpu.rows import PAGES_A_ROW, Row, answer_all, engine_of, params_of, prompt_of
from twolane.engine.cuda.engine import CudaEngine
from twolane.engine.cuda.memory import tensor_of
from twolane.engine.cuda.products import STREAMED_ROWS, UNSCALED_ROWS, Products
from twolane.engine.errors import EngineConfigError
from twolane.engine.kernels.launch import card_of
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.engine.kernels.rows.norm import reference_rms_norm, rms_norm
from twolane.engine.kernels.rows.quantise import quantise_rows
from twolane.engine.kernels.rows.silu import reference_silu_mul, silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.fp8 import Fp8Rows, Unscaled
from twolane.engine.testing import write_random_model

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
ROUNDING = 0.04  # of a row to FP8, relative
CUDA = torch.device("cuda")
N_ROWS, N_TOKENS = 40, 8


def rows_of(x: torch.Tensor) -> Fp8Rows:
    rows = Fp8Rows.empty(len(x), x.shape[1], device=CUDA)
    rows.copy_(x)
    return rows


def poisoned(n: int, width: int) -> Fp8Rows:
    rows = Fp8Rows.empty(n, width, device=CUDA)
    rows.values.fill_(torch.nan)
    rows.scales.fill_(torch.nan)
    return rows


def assert_rounded(got: Fp8Rows, expected: torch.Tensor) -> None:
    assert got.scales.mul(448).double().allclose(expected.abs().amax(-1), rtol=1e-2)
    error = (got.dequantise().double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < ROUNDING


@pytest.mark.parametrize("n", [1, 300])
@pytest.mark.parametrize("width", [4096, 3584, 8192])
def test_norm_to_fp8_matches_float64(n: int, width: int) -> None:
    x, residual = (torch.randn(n, width, device=CUDA, dtype=BF16) * 3 for _ in range(2))
    weight = torch.randn(width, device=CUDA)
    out = poisoned(n, width)
    normed, _ = reference_rms_norm(x, weight, 1e-5, residual)
    rms_norm(x, weight, out=out, epsilon=1e-5, residual=residual)
    assert_rounded(out, normed)


@pytest.mark.parametrize("n", [1, 300])
@pytest.mark.parametrize("width", [14336, 28672, 1040])
def test_silu_to_fp8_matches_float64(n: int, width: int) -> None:
    gate_up = torch.randn(n, 2 * width, device=CUDA, dtype=BF16) * 3
    out = poisoned(n, width)
    silu_mul(gate_up, out=out)
    assert_rounded(out, reference_silu_mul(gate_up))


def test_rows_are_rounded_as_torch_rounds_them() -> None:
    x = torch.randn(200, 4096, device=CUDA, dtype=BF16) * 7
    out = poisoned(200, 4096)
    quantise_rows(x, out=out)
    expected = rows_of(x)
    assert out.scales.allclose(expected.scales, rtol=1e-6)
    assert (out.values.float() == expected.values.float()).float().mean() > 0.999


@pytest.mark.parametrize("n", [1, 2, 3, 16, 64, 300, 2048])
@pytest.mark.parametrize(("outer", "inner"), [(6144, 4096), (4096, 14336), (80, 48)])
def test_products_of_fp8_weights_match_float64(n: int, outer: int, inner: int) -> None:
    x = torch.randn(n, inner, device=CUDA, dtype=BF16)
    weight = rows_of(torch.randn(outer, inner, device=CUDA))
    out = Products(exact=False)(x, weight, None, pdl=0)
    card = card_of(CUDA)
    assert card is not None
    wide = rows_of(x).dequantise().double() if n > 2 or card.is_hopper else x.double()
    expected = wide @ weight.dequantise().double().t()
    assert relative_error(out, expected) < 6e-3  # sums inside the tensor cores keep fewer bits


@pytest.mark.parametrize(
    "n", [STREAMED_ROWS, STREAMED_ROWS + 1, 256, 300, UNSCALED_ROWS, UNSCALED_ROWS + 1]
)
@pytest.mark.parametrize(("outer", "inner"), [(4096, 4096), (4096, 14336), (80, 48)])
def test_sums_that_a_norm_scales_match_float64(n: int, outer: int, inner: int) -> None:
    """Rows and outputs of very different sizes."""
    x = torch.randn(n, inner, device=CUDA, dtype=BF16)
    x *= torch.logspace(-3, 3, n, device=CUDA, dtype=BF16)[:, None]
    weight = rows_of(torch.randn(outer, inner, device=CUDA) * torch.rand(outer, 1, device=CUDA))
    norm = torch.rand(outer, device=CUDA, dtype=BF16) + 0.5
    out = torch.full((n, outer), torch.nan, device=CUDA, dtype=BF16)
    sums = Products(exact=False).for_norm(x, weight, None, pdl=0)
    assert isinstance(sums, Unscaled) == (STREAMED_ROWS < n <= UNSCALED_ROWS)
    rms_norm(sums, norm, out=out, epsilon=1e-9)
    wide = rows_of(x).dequantise().double() @ weight.dequantise().double().t()
    expected, _ = reference_rms_norm(wide, norm, 1e-9)
    errors = [relative_error(one, other) for one, other in zip(out, expected, strict=True)]
    assert max(errors) < 8e-3  # sums inside the tensor cores keep fewer bits


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(
        tmp_path_factory.mktemp("fp8"), "llama", seed=2, hidden_size=512, heads=8, kv_heads=2,
        head_dim=128, vocab_size=1000,
    )  # fmt: skip


def made(model_dir: Path, **options: Any) -> CudaEngine:
    return engine_of(model_dir, dtype="bfloat16", n_pages=(N_ROWS + 1) * PAGES_A_ROW, **options)


@pytest.fixture
def exact(model_dir: Path) -> Iterator[CudaEngine]:
    engine = made(model_dir, kv_dtype="fp8", exact=True)
    yield engine
    engine.close()


def all_rows() -> list[Row]:
    source = random.Random(3)
    lengths = [1, 2, 63, 64, 65, 127, 128, 129, 700, *(source.randrange(1, 500) for _ in range(31))]
    return [Row(i, prompt_of(size), params_of(i)) for i, size in enumerate(lengths)]


def first_logprobs(engine: CudaEngine) -> list[dict[int, float]]:
    rows = all_rows()
    answer_all(engine, rows, 1, chunk=lambda: 1 << 20)
    return [dict(row.found[0].top) for row in rows]


@pytest.mark.parametrize("options", [{"weights": "fp8"}, {"kv_dtype": "fp8"}])
def test_answers_are_near_those_of_a_wide_engine(model_dir: Path, options: dict[str, Any]) -> None:
    found = []
    for settings in ({}, options):
        engine = made(model_dir, **settings)
        found.append(first_logprobs(engine))
        engine.close()
    apart = [
        abs(theirs[token] - ours[token])
        for theirs, ours in zip(*found, strict=True)
        for token in theirs.keys() & ours.keys()
    ]
    assert len(apart) > N_ROWS  # mostly the same three tokens are likeliest
    assert 0 < mean(apart) < 0.3


def test_exact_answers_over_fp8_pages_keep_their_bits(exact: CudaEngine) -> None:
    alone = all_rows()
    for row in alone:
        answer_all(exact, [row], N_TOKENS, chunk=lambda: 1 << 20, ahead=False)
    source = random.Random(7)
    crowd = all_rows()
    source.shuffle(crowd)
    answer_all(exact, crowd, N_TOKENS, chunk=lambda: source.randrange(1, 300))
    found = {row.name: row.found for row in crowd}
    assert [row.name for row in alone if row.found != found[row.name]] == []


def test_fp8_pages_are_handed_over_with_their_scales(exact: CudaEngine, model_dir: Path) -> None:
    expected = all_rows()
    answer_all(exact, expected, N_TOKENS, chunk=lambda: 1 << 20)
    rows = all_rows()
    answer_all(exact, rows, 1, chunk=lambda: 100)
    taker = made(model_dir, kv_dtype="fp8", exact=True)
    pools = [engine.device_pool for engine in (exact, taker)]
    assert pools[0] is not None
    assert pools[1] is not None
    pages = torch.arange(taker.spec.n_pages, dtype=torch.int32, device=CUDA)
    torch.cuda.synchronize()
    (source,), (target,) = pools[0].addresses, pools[1].addresses
    copy_pages(source, target, pages, pages, page_bytes=taker.spec.page_bytes)
    torch.cuda.synchronize()
    answer_all(taker, rows, N_TOKENS, chunk=lambda: 1)
    assert [row.found for row in rows] == [row.found for row in expected]
    taker.close()


def test_a_row_whose_fp8_pages_are_broken_fails_alone(model_dir: Path) -> None:
    engine = made(model_dir, kv_dtype="fp8")
    rows = [Row(i, prompt_of(40 + i), params_of(i)) for i in range(6)]
    answer_all(engine, rows, 2, chunk=lambda: 1 << 20)
    work = [row.work(1) for row in rows]
    expected = engine.run(work)
    assert engine.device_pool is not None
    pool = tensor_of(engine.device_pool).view(torch.float32).view(engine.spec.n_pages, -1)
    pool[rows[2].pages[0]] = torch.nan
    torch.cuda.synchronize()
    results = engine.run(work)
    assert [bool(result.error) for result in results] == [i == 2 for i in range(6)]
    assert [r for r in results if not r.error] == [expected[i] for i in (0, 1, 3, 4, 5)]
    engine.close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": "fp8", "dtype": "float32"}, "FP8 weights need dtype bfloat16"),
        ({"weights": "fp8", "exact": True}, "exact mode needs weights of another dtype"),
    ],
)
def test_what_cannot_be_is_refused(
    model_dir: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(EngineConfigError, match=complaint):
        engine_of(model_dir, **options)
