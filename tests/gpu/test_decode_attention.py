"""Decode attention on a card against float64."""

from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig, Fp8Products
from twolane.engine.kernels.testing import PagedRows, relative_error
from twolane.engine.model_files.fp8 import FP8

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
SHAPES = [
    (32, 8, 128),
    (28, 4, 64),
    (7, 1, 128),
    (8, 8, 80),
    (12, 4, 96),
    (8, 1, 256),
    (24, 1, 128),
]


def rows(lengths: list[int], **options: Any) -> PagedRows:
    settings: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, **options}
    return PagedRows([n - 1 for n in lengths], [1] * len(lengths), **settings)


def around_edges() -> list[int]:
    return [n for edge in (64, 128, 512, 1024) for n in (edge - 1, edge, edge + 1)] + [1, 2, 700]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_head_shapes_match_float64(heads: int, kv_heads: int, head_dim: int) -> None:
    case = rows(around_edges(), heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    error = relative_error(case.decode(max_items=60), case.expected())
    assert error < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dtypes_match_float64(dtype: torch.dtype) -> None:
    case = rows(around_edges(), heads=8, kv_heads=2, head_dim=64, dtype=dtype)
    assert relative_error(case.decode(max_items=40), case.expected()) < BOUNDS[dtype]


@pytest.mark.parametrize("window", [1, 64, 65, 400])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    case = rows(around_edges(), heads=8, kv_heads=2, head_dim=128)
    error = relative_error(case.decode(window=window, max_items=40), case.expected(window=window))
    assert error < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("tensor_copy", [True, False])
@pytest.mark.parametrize("warps", [2, 4, 8])
def test_every_way_to_build_it_matches_float64(tensor_copy: bool, warps: int) -> None:
    case = rows(around_edges(), heads=8, kv_heads=2, head_dim=128)
    config = DecodeAttentionConfig(tensor_copy=tensor_copy, warps=warps)
    error = relative_error(case.decode(config=config, max_items=40), case.expected())
    assert error < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("products", Fp8Products)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_an_fp8_pool_is_read_with_its_scales(
    heads: int, kv_heads: int, head_dim: int, products: Fp8Products
) -> None:
    case = rows(around_edges(), heads=heads, kv_heads=kv_heads, head_dim=head_dim, kv_dtype=FP8)
    got = case.decode(config=DecodeAttentionConfig(products=products), max_items=60)
    assert relative_error(got, case.expected()) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("products", Fp8Products)
@pytest.mark.parametrize("powers", [(-20.0, 4.0), (-20.0, -16.0)])
def test_an_fp8_pool_may_have_any_scales(
    products: Fp8Products, powers: tuple[float, float]
) -> None:
    case = rows(
        around_edges(), heads=8, kv_heads=2, head_dim=128, kv_dtype=FP8, value_scales=powers
    )
    got = case.decode(config=DecodeAttentionConfig(products=products), max_items=60)
    assert relative_error(got, case.expected()) < BOUNDS[torch.bfloat16]


@pytest.mark.parametrize("window", [1, 64, 65, 400])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_window_over_an_fp8_pool_hides_what_lies_before_it(window: int, stages: int) -> None:
    case = rows(around_edges(), heads=8, kv_heads=2, head_dim=128, kv_dtype=FP8)
    got = case.decode(window=window, config=DecodeAttentionConfig(stages=stages), max_items=40)
    assert relative_error(got, case.expected(window=window)) < BOUNDS[torch.bfloat16]


def test_fixed_splits_of_an_fp8_pool_give_a_row_the_same_bits_in_any_company() -> None:
    lengths = [*around_edges(), 5000]
    case = rows(lengths, heads=8, kv_heads=2, head_dim=128, kv_dtype=FP8)
    crowd = case.decode(fixed_pages=4, max_items=200, programs=40)
    assert relative_error(crowd, case.expected()) < BOUNDS[torch.bfloat16]
    queries, tables = case.queries, case.tables
    for order in ([15], [7], [15, 0, 3]):
        case.starts, case.lengths = [lengths[i] - 1 for i in order], [1] * len(order)
        case.queries, case.tables = queries[order], tables[order]
        assert torch.equal(case.decode(fixed_pages=4, max_items=200), crowd[order])


def test_three_hundred_rows_and_one_of_32k() -> None:
    torch.manual_seed(4)
    lengths = [32_768, *torch.randint(1, 700, (299,)).tolist()]
    case = rows(lengths, heads=8, kv_heads=2, head_dim=128)
    for fresh in range(3):
        got = case.decode(max_items=400)
        assert relative_error(got, case.expected()) < BOUNDS[torch.bfloat16], fresh
        assert relative_error(got[:1], case.expected()[:1]) < BOUNDS[torch.bfloat16], fresh
        case.queries.normal_()


def test_a_rows_bits_do_not_depend_on_its_company_when_splits_are_fixed() -> None:
    lengths = [*around_edges(), 5000]
    case = rows(lengths, heads=8, kv_heads=2, head_dim=128)
    crowd = case.decode(fixed_pages=4, max_items=200)
    assert relative_error(crowd, case.expected()) < BOUNDS[torch.bfloat16]
    queries, tables = case.queries, case.tables
    for order in ([15], [7], list(range(len(lengths)))[::-1], [15, 0, 3]):
        case.starts, case.lengths = [lengths[i] - 1 for i in order], [1] * len(order)
        case.queries, case.tables = queries[order], tables[order]
        assert torch.equal(case.decode(fixed_pages=4, max_items=200), crowd[order])


def test_a_captured_step_serves_other_lengths() -> None:
    from twolane.engine.kernels.attention.decode_attention import decode_attention
    from twolane.engine.kernels.attention.decode_plan import allocate_plan, plan_decode

    case = rows([300, 64, 1], heads=8, kv_heads=2, head_dim=128)
    longer = torch.tensor(case.ends, dtype=torch.int32, device="cuda")
    lengths = longer.clone()
    plan = allocate_plan(3, max_items=33, kv_heads=2, group=4, head_dim=128, device="cuda")
    out = torch.empty_like(case.queries)

    def step() -> None:
        plan_decode(plan, lengths, case.tables, page_tokens=64)
        decode_attention(case.queries, case.view, 1, case.tables, plan, out=out, scale=case.scale)

    lengths.fill_(1)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    out.fill_(torch.nan)
    lengths.copy_(longer)
    graph.replay()
    assert relative_error(out, case.expected()) < BOUNDS[torch.bfloat16]
