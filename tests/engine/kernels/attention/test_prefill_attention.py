"""Prefill attention against float64, in the interpreter."""

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.attention.prefill_attention import PrefillConfig
from twolane.engine.kernels.attention.prefill_plan import plan_prefill
from twolane.engine.kernels.pages.dequantise import dequantise_pages
from twolane.engine.kernels.pages.kv_view import allocate_view
from twolane.engine.kernels.reference import gather
from twolane.engine.kernels.testing import PagedRows, relative_error
from twolane.engine.model_files.fp8 import FP8


@pytest.mark.parametrize("start", [0, 1, 63, 64, 130])
def test_chunks_behind_any_prefix_match_float64(start: int) -> None:
    case = PagedRows([start, 0, 70], [33, 1, 64])
    assert relative_error(case.prefill(), case.expected()) < 1e-6


@pytest.mark.parametrize("window", [1, 32, 64, 100])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    case = PagedRows([0, 140], [130, 40])
    assert relative_error(case.prefill(window=window), case.expected(window=window)) < 1e-6


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(7, 1, 64), (2, 2, 80), (3, 1, 96), (2, 1, 128), (1, 1, 256)],
)
def test_head_shapes_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    case = PagedRows([5], [66], heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    assert relative_error(case.prefill(), case.expected()) < 1e-6


@pytest.mark.parametrize("tensor_copy", [True, False])
def test_both_ways_to_load_match_float64(tensor_copy: bool) -> None:
    case = PagedRows([100], [65], dtype=torch.float16)
    config = PrefillConfig(block_tokens=64, warps=4, stages=3, tensor_copy=tensor_copy)
    assert relative_error(case.prefill(config=config), case.expected()) < 2e-3


def test_an_fp8_pool_is_read_with_its_scales() -> None:
    case = PagedRows([70], [65], dtype=torch.float16, kv_dtype=FP8)
    assert relative_error(case.prefill(), case.expected()) < 3e-3


@pytest.mark.parametrize("powers", [(-20.0, 4.0), (-20.0, -16.0)])
def test_an_fp8_pool_may_have_any_scales(powers: tuple[float, float]) -> None:
    """A weight times the scale of a small value is far below what float16 can tell from 0."""
    case = PagedRows([70], [65], dtype=torch.float32, kv_dtype=FP8, value_scales=powers)
    assert relative_error(case.prefill(), case.expected()) < 3e-3


@pytest.mark.parametrize("head_dim", [64, 80])
def test_pages_are_widened_in_the_order_of_the_rows(head_dim: int) -> None:
    case = PagedRows([70, 0], [65, 3], dtype=torch.float32, kv_dtype=FP8, head_dim=head_dim)
    out = allocate_view(
        6, layers=1, kv_heads=2, head_dim=head_dim, dtype=torch.float32, device="cpu"
    )
    out.values.fill_(7.0)
    lengths = torch.tensor(case.ends, dtype=torch.int32)
    dequantise_pages(case.view, 1, case.tables, lengths, out=out)
    for row, end in enumerate(case.ends):
        expected = gather(case.view, 1, case.pages[row], end)
        found = gather(out, 0, [3 * row, 3 * row + 1, 3 * row + 2], 3 * 64)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours[:, :end], theirs, rtol=1e-6)
            last = -(-end // 64) * 64
            assert not ours[:, end:last].any()
            assert torch.all(ours[:, last:] == 7.0)


def test_the_costliest_tiles_come_first_and_cover_every_token_once() -> None:
    plan = plan_prefill([0, 500], [300, 70], block_tokens=64)
    keys = [min(first + 64, end - token + first) for _, token, end, first in plan.tolist()]
    assert keys == sorted(keys, reverse=True)
    tokens = [t for _, token, end, _ in plan.tolist() for t in range(token, min(token + 64, end))]
    assert sorted(tokens) == list(range(370))
