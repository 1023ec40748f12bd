"""Decode attention against float64, in the interpreter."""

from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig, Fp8Products
from twolane.engine.kernels.attention.decode_plan import (
    allocate_plan,
    items_for,
    plan_decode,
    reference_plan,
)
from twolane.engine.kernels.testing import PagedRows, relative_error
from twolane.engine.model_files.fp8 import FP8


def rows(lengths: list[int], **options: Any) -> PagedRows:
    return PagedRows([n - 1 for n in lengths], [1] * len(lengths), **options)


def test_rows_of_every_length_around_a_page_match_float64() -> None:
    case = rows([1, 63, 64, 65, 127, 129])
    assert relative_error(case.decode(), case.expected()) < 1e-6


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(7, 1, 64), (2, 2, 80), (3, 1, 96), (2, 1, 128), (1, 1, 256)],
)
def test_head_shapes_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    case = rows([70], heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    assert relative_error(case.decode(), case.expected()) < 1e-6


@pytest.mark.parametrize("window", [1, 63, 64, 65, 130])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    case = rows([40, 64, 200])
    assert relative_error(case.decode(window=window), case.expected(window=window)) < 1e-6


@pytest.mark.parametrize("tensor_copy", [True, False])
def test_both_ways_to_load_match_float64(tensor_copy: bool) -> None:
    case = rows([130, 3], dtype=torch.float16)
    config = DecodeAttentionConfig(tensor_copy=tensor_copy)
    assert relative_error(case.decode(config=config), case.expected()) < 2e-3


@pytest.mark.parametrize("products", Fp8Products)
@pytest.mark.parametrize("tensor_copy", [True, False])
def test_an_fp8_pool_is_read_with_its_scales(products: Fp8Products, tensor_copy: bool) -> None:
    case = rows([130, 64, 1], head_dim=64, dtype=torch.float16, kv_dtype=FP8)
    config = DecodeAttentionConfig(products=products, tensor_copy=tensor_copy)
    assert relative_error(case.decode(config=config), case.expected()) < 2e-3


@pytest.mark.parametrize("products", Fp8Products)
@pytest.mark.parametrize("powers", [(-20.0, 4.0), (-20.0, -16.0)])
def test_an_fp8_pool_may_have_any_scales(
    products: Fp8Products, powers: tuple[float, float]
) -> None:
    case = rows([130, 64, 1], head_dim=64, kv_dtype=FP8, value_scales=powers)
    got = case.decode(config=DecodeAttentionConfig(products=products))
    assert relative_error(got, case.expected()) < 3e-3


@pytest.mark.parametrize("products", Fp8Products)
def test_pages_of_an_fp8_pool_that_were_never_written_add_nothing(products: Fp8Products) -> None:
    case = rows([200, 64], head_dim=64, kv_dtype=FP8)
    for own in case.pages:
        for part in case.view.parts():
            part[own[0]] = 0.0
        case.view.plane_scales()[own[0]] = 0.0
    expected = case.expected()
    got = case.decode(config=DecodeAttentionConfig(products=products))
    assert relative_error(got, expected) < 2e-3


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(7, 1, 64), (2, 2, 80), (3, 1, 96), (12, 1, 128)]
)
def test_head_shapes_of_an_fp8_pool_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    case = rows([70], heads=heads, kv_heads=kv_heads, head_dim=head_dim, kv_dtype=FP8)
    assert relative_error(case.decode(), case.expected()) < 2e-3


@pytest.mark.parametrize("window", [1, 63, 64, 65, 130])
def test_a_window_over_an_fp8_pool_hides_what_lies_before_it(window: int) -> None:
    case = rows([40, 64, 200], kv_dtype=FP8)
    assert relative_error(case.decode(window=window), case.expected(window=window)) < 2e-3


def test_a_sink_does_not_silence_the_pages_after_it() -> None:
    case = rows([400], heads=1, kv_heads=1, head_dim=64, kv_dtype=FP8)
    keys, held = case.view.parts()
    first = case.pages[0][0]
    query = case.queries[0, 0]
    keys[first, 1, 0, 0] = (query / query.norm() * 8).to(FP8)
    case.view.plane_scales()[first, 1, 0, 0, 0] = 2.5  # its score is some 20 above the others'
    held[first, 1, 0] = 0.0
    assert relative_error(case.decode(), case.expected()) < 5e-3


def test_few_programs_walk_all_items() -> None:
    case = rows([200, 70, 129])
    assert relative_error(case.decode(programs=2), case.expected()) < 1e-6


def test_fixed_splits_match_float64() -> None:
    case = rows([200, 70, 129])
    assert relative_error(case.decode(fixed_pages=1, max_items=9), case.expected()) < 1e-6


@pytest.mark.parametrize(
    ("lengths", "max_items", "window", "fixed"),
    [
        ([1], 1, 0, 0),
        ([64 * 40, 1, 64, 65], 12, 0, 0),
        ([64 * 7 + 1, 0, 130], 3, 0, 0),
        ([1000, 2000, 10], 16, 300, 0),
        ([1000, 64, 0, 2000], 64, 0, 3),
        ([65 * (i % 7) for i in range(40)], 60, 0, 0),
    ],
)
def test_the_devices_plan_is_the_references_and_covers_each_page_once(
    lengths: list[int], max_items: int, window: int, fixed: int
) -> None:
    plan = allocate_plan(
        len(lengths),
        max_items=max_items,
        kv_heads=1,
        group=1,
        head_dim=16,
        device="cpu",
        fixed_pages=fixed,
    )
    ends = torch.tensor(lengths, dtype=torch.int32)
    tables = torch.randint(0, 1000, (len(lengths), 40), dtype=torch.int32)
    plan_decode(plan, ends, tables, page_tokens=64, window=window)
    expected = reference_plan(
        lengths, max_items=max_items, page_tokens=64, window=window, fixed_pages=fixed
    )
    assert plan.total.item() == len(expected)
    records = plan.items[: len(expected)].tolist()
    assert [tuple(r[:6]) for r in records] == expected
    pages = [r[2] - r[1] for r in records if r[5] == 1]
    assert pages == sorted(pages, reverse=True), "what starts last should be short"
    assert [r[6] for r in records] == [tables[r[0], r[1]].item() for r in records]
    for row, n in enumerate(lengths):
        own = [r for r in expected if r[0] == row]
        first = max(n - window, 0) // 64 if window else 0
        covered = [page for r in own for page in range(r[1], r[2])]
        assert covered == list(range(first, -(-n // 64)))


@pytest.mark.parametrize(
    ("n_rows", "most", "records"),
    [(1, 16, 16), (8, 16, 16), (15, 16, 15), (32, 48, 32), (64, 80, 64), (256, 272, 256)],
)
def test_equal_rows_are_split_only_to_give_each_multiprocessor_a_program(
    n_rows: int, most: int, records: int
) -> None:
    assert items_for(n_rows, kv_heads=8, cores=132) == most
    assert len(reference_plan([1024] * n_rows, max_items=most, page_tokens=64)) == records


def test_a_row_much_longer_than_the_rest_is_split() -> None:
    most = items_for(64, kv_heads=8, cores=132)
    records = reference_plan([32_768] + [1024] * 63, max_items=most, page_tokens=64)
    assert sum(r[0] == 0 for r in records) == 17
