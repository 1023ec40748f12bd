"""Prefill attention on a card against float64."""

from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.attention.prefill_attention import PrefillConfig
from twolane.engine.kernels.pages.dequantise import dequantise_pages
from twolane.engine.kernels.pages.kv_view import allocate_view
from twolane.engine.kernels.testing import PagedRows, relative_error, worst_row_error
from twolane.engine.model_files.fp8 import FP8

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
SHAPES = [(32, 8, 128), (28, 4, 64), (7, 1, 128), (8, 8, 80), (12, 4, 96), (8, 1, 256)]
STARTS = [0, 0, 0, 1, 63, 64, 65, 500, 0, 127]
LENGTHS = [1, 64, 129, 127, 128, 1, 63, 300, 700, 2]


def chunks(**options: Any) -> PagedRows:
    settings: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, **options}
    return PagedRows(STARTS, LENGTHS, **settings)


GENERAL = PrefillConfig(block_tokens=64, warps=4, stages=3)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_head_shapes_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    case = chunks(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    error = relative_error(case.prefill(), case.expected())
    assert error < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtypes_match_float64(dtype: torch.dtype) -> None:
    case = chunks(heads=8, kv_heads=2, head_dim=64, dtype=dtype)
    assert relative_error(case.prefill(), case.expected()) < BOUNDS[dtype]


@pytest.mark.parametrize("config", [None, GENERAL])
@pytest.mark.parametrize("window", [1, 64, 100, 400])
def test_a_window_hides_what_lies_before_it(window: int, config: PrefillConfig | None) -> None:
    case = chunks(heads=8, kv_heads=2, head_dim=128)
    got = case.prefill(window=window, config=config)
    assert relative_error(got, case.expected(window=window)) < BOUNDS[torch.bfloat16]


def test_an_fp8_pool_is_read_with_its_scales() -> None:
    case = chunks(heads=8, kv_heads=2, head_dim=128, kv_dtype=FP8)
    error = relative_error(case.prefill(), case.expected())
    assert error < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("powers", [(-20.0, 4.0), (-20.0, -16.0)])
def test_an_fp8_pool_may_have_any_scales(powers: tuple[float, float]) -> None:
    case = chunks(heads=8, kv_heads=2, head_dim=128, kv_dtype=FP8, value_scales=powers)
    assert relative_error(case.prefill(), case.expected()) < BOUNDS[torch.bfloat16]


def test_an_fp8_pool_may_be_widened_first() -> None:
    case = chunks(heads=8, kv_heads=2, head_dim=128, kv_dtype=FP8)
    expected = case.expected()
    rows, pages = len(case.ends), case.tables.shape[1]
    wide = allocate_view(
        rows * pages, layers=1, kv_heads=2, head_dim=128, dtype=torch.bfloat16, device="cuda"
    )
    wide.values.fill_(torch.nan)
    ends = torch.tensor(case.ends, dtype=torch.int32, device="cuda")
    dequantise_pages(case.view, 1, case.tables, ends, out=wide)
    case.view = wide
    case.tables = torch.arange(rows * pages, dtype=torch.int32, device="cuda").view(rows, pages)
    assert relative_error(case.prefill(layer=0), expected) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("tensor_copy", [True, False])
def test_the_general_kernel_matches_float64(tensor_copy: bool) -> None:
    case = chunks(heads=8, kv_heads=2, head_dim=128)
    config = PrefillConfig(block_tokens=64, warps=4, stages=3, tensor_copy=tensor_copy)
    assert relative_error(case.prefill(config=config), case.expected()) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_many_short_rows_match_float64(head_dim: int) -> None:
    """Tiles of which one of two groups of warps has no queries, many to a program."""
    case = PagedRows(
        [0, 64, 200] * 16, [1, 64, 30, 65] * 12, heads=32, kv_heads=8, head_dim=head_dim,
        device="cuda", dtype=torch.bfloat16,
    )  # fmt: skip
    expected = case.expected()
    for _ in range(5):
        assert relative_error(case.prefill(), expected) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize(("head_dim", "dtype"), [(128, torch.bfloat16), (64, torch.float16)])
@pytest.mark.parametrize("window", [0, 70, 130])
def test_a_tokens_bits_do_not_depend_on_the_parity_of_its_tiles_pages(
    window: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Pages are taken in two by two: the same two wherever a chunk or a window begins, and whether
    or not keys that it must not see are there already."""
    n = 630
    case = PagedRows([0], [n], heads=8, kv_heads=2, head_dim=head_dim, device="cuda", dtype=dtype)
    whole = case.prefill(window=window)
    queries = case.queries
    for border in (64, 100, 128, 192, 320, 629):
        for first, last in ((border, n), (0, border)):
            case.starts, case.lengths = [first], [last - first]
            case.queries = queries[first:last]
            assert torch.equal(case.prefill(window=window), whole[first:last]), (first, last)


def test_a_long_prompt_matches_float64() -> None:
    case = PagedRows(
        [30_000, 0], [2768, 3000], heads=4, kv_heads=1, head_dim=128,
        device="cuda", dtype=torch.bfloat16,
    )  # fmt: skip
    got, expected = case.prefill(), case.expected()
    assert relative_error(got, expected) < BOUNDS[torch.bfloat16]
    assert worst_row_error(got, expected) < 3 * BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("config", [None, GENERAL])
def test_a_tokens_bits_do_not_depend_on_chunks_and_company(config: PrefillConfig | None) -> None:
    case = PagedRows(
        [0, 0], [500, 200], heads=8, kv_heads=2, head_dim=128,
        device="cuda", dtype=torch.bfloat16,
    )  # fmt: skip
    whole = case.prefill(config=config)[:500]
    queries, tables, view = case.queries, case.tables, case.view
    for border in (1, 64, 77, 128, 499):
        for first, last in ((border, 500), (0, border)):
            case.starts, case.lengths = [first], [last - first]
            case.queries, case.tables, case.view = queries[first:last], tables[:1], view
            assert torch.equal(case.prefill(config=config), whole[first:last]), (first, last)
