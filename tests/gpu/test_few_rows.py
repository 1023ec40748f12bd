"""Products of a few rows on a card: against float64, again and again, and amid a chain of kernels
whose launches overlap."""

from collections.abc import Callable

import pytest

pytest.importorskip("triton")

import torch

from twolane.engine.kernels.pdl import APART, EARLY, OVERLAP
from twolane.engine.kernels.products.few_rows import PartialSums, few_rows_product
from twolane.engine.kernels.products.few_rows_plan import FewRowsConfig, pad_rows, stages_for
from twolane.engine.kernels.products.row_padding import padded_empty, padded_fp8
from twolane.engine.kernels.products.unnormed import Residual
from twolane.engine.kernels.rows.norm import reference_rms_norm, rms_norm
from twolane.engine.kernels.rows.silu import reference_silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.fp8 import Fp8Rows

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
BOUND = 4e-3  # one rounding to bf16


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def poisoned_sums() -> PartialSums:
    sums = PartialSums("cuda")
    sums.values.fill_(torch.nan)
    return sums


def check(
    rows: int, outer: int, inner: int, *, gated: bool, biased: bool,
    dtype: torch.dtype = BF16, config: FewRowsConfig | None = None,
) -> None:  # fmt: skip
    x = random(rows, inner, dtype=dtype)
    weight = random(outer * (1 + gated), inner, dtype=dtype) / inner**0.5
    bias = random(len(weight), dtype=dtype) if biased else None
    sums = poisoned_sums()
    out = torch.full((rows, outer), torch.nan, device="cuda", dtype=dtype)
    few_rows_product(x, weight, out=out, bias=bias, gated=gated, sums=sums, config=config)
    expected = x.double() @ weight.double().T
    if bias is not None:
        expected += bias.double()
    error = relative_error(out, reference_silu_mul(expected) if gated else expected)
    assert error < BOUND, (error, config)
    assert not sums.counters.any(), "a merge left its counter behind"


def cut(
    half: int, pair: bool, block_in: int, rows_pad: int, programs: int, *, split: bool = True
) -> FewRowsConfig:
    stages = min(stages_for(half * (1 + pair), block_in, rows_pad), 7)
    return FewRowsConfig(
        half=half, pair=pair, block_in=block_in, stages=stages, split=split, programs=programs
    )


@pytest.mark.parametrize("rows", [9, 24, 40, 72, 90, 150, 180])
@pytest.mark.parametrize("gated", [False, True])
def test_padding_behind_the_rows_changes_no_bit(rows: int, gated: bool) -> None:
    x = padded_empty(torch.empty(0, dtype=BF16, device="cuda"), rows, 4096)
    x.as_strided((pad_rows(rows), 4096), (4096, 1)).fill_(torch.nan)
    x.copy_(random(rows, 4096))
    weight = random(2048 * (1 + gated), 4096) / 64
    outs = [torch.full((rows, 2048), torch.nan, device="cuda", dtype=BF16) for _ in range(2)]
    for rows_in, out in zip((x, x.clone()), outs, strict=True):
        few_rows_product(rows_in, weight, out=out, gated=gated, sums=poisoned_sums())
    assert torch.equal(*outs)


@pytest.mark.parametrize("rows", [1, 8, 24, 64, 80, 100, 150, 192])
@pytest.mark.parametrize(("outer", "inner"), [(1000, 912), (6144, 4096), (4096, 14336)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_fp8_products_match_float64(
    rows: int, outer: int, inner: int, gated: bool, biased: bool
) -> None:
    """Behind the rows are NaN."""
    x = padded_fp8(torch.empty(0, device="cuda"), rows, inner)
    x.values.as_strided((pad_rows(rows), inner), (inner, 1)).fill_(torch.nan)
    x.copy_(random(rows, inner) * torch.logspace(-3, 3, rows, device="cuda")[:, None])
    weight = Fp8Rows.empty(outer * (1 + gated), inner, device=torch.device("cuda"))
    weight.copy_(random(*weight.shape) / inner**0.5)
    bias = random(len(weight)) if biased else None
    sums, out = poisoned_sums(), torch.full((rows, outer), torch.nan, device="cuda", dtype=BF16)
    few_rows_product(x, weight, out=out, bias=bias, gated=gated, sums=sums)
    expected = x.dequantise().double() @ weight.dequantise().double().T
    if bias is not None:
        expected += bias.double()
    if gated:
        expected = reference_silu_mul(expected)
    errors = [relative_error(one, other) for one, other in zip(out, expected, strict=True)]
    assert max(errors) < 6e-3  # sums inside the tensor cores keep fewer bits
    assert not sums.counters.any(), "a merge left its counter behind"


@pytest.mark.parametrize("rows", [8, 16, 32, 64, 80, 96, 128, 144, 160, 192])
@pytest.mark.parametrize("gated", [False, True])
def test_products_match_float64(rows: int, gated: bool) -> None:
    """As the engine cuts them, at every padding, full and not: no tile, no chunk is whole."""
    check(rows, 1000, 904, gated=gated, biased=False)
    check(rows // 2 + 1, 1000, 904, gated=gated, biased=False)


@pytest.mark.parametrize(
    ("rows", "outer", "inner", "gated"),
    [(1, 6144, 4096, False), (9, 4096, 14336, False), (31, 14336, 4096, True), (3, 40, 24, False)],
)
def test_products_of_other_sizes_match_float64(
    rows: int, outer: int, inner: int, gated: bool
) -> None:
    check(rows, outer, inner, gated=gated, biased=False)


@pytest.mark.parametrize(
    ("rows_pad", "gated", "pair", "half", "block_in"),
    [(16, False, False, 64, 128), (128, False, True, 64, 64), (64, False, False, 128, 64),
     (32, False, True, 128, 64), (8, False, True, 64, 128), (128, True, True, 64, 64),
     (64, True, True, 128, 64), (80, True, True, 64, 64), (96, False, False, 64, 64),
     (160, False, False, 64, 64), (192, True, True, 64, 64)],
)  # fmt: skip
def test_every_way_of_cutting_gives_the_same(
    rows_pad: int, gated: bool, pair: bool, half: int, block_in: int
) -> None:
    """Programs of many tiles, of parts of two, of small parts of one; and of whole ones.

    One build serves all the numbers of programs, another one those of whole tiles.
    """
    for programs in (1, 7, 23, 132):
        config = cut(half, pair, block_in, rows_pad, programs)
        check(rows_pad - 3, 1336, 2600, gated=gated, biased=True, config=config)
    config = cut(half, pair, block_in, rows_pad, 5, split=False)
    check(rows_pad - 3, 1336, 2600, gated=gated, biased=True, config=config)


def test_half_precision_matches_float64() -> None:
    config = cut(64, True, 64, 16, 50)
    check(11, 1000, 904, gated=False, biased=True, dtype=torch.float16, config=config)


@pytest.mark.parametrize(
    ("rows", "programs"), [(8, 128), (64, 132), (80, 128), (128, 50), (192, 132)]
)
def test_bits_do_not_depend_on_who_comes_last(rows: int, programs: int) -> None:
    """Tiles of two programs each, of two or three, and of one or two."""
    x, weight, sums = random(rows, 4096), random(4096, 4096), poisoned_sums()
    config = cut(64, False, 64, rows, programs)
    outs = []
    for _ in range(50):
        out = torch.full((rows, 4096), torch.nan, device="cuda", dtype=BF16)
        few_rows_product(x, weight, out=out, sums=sums, config=config)
        outs.append(out)
    assert relative_error(outs[0], x.double() @ weight.double().T) < BOUND
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize(
    ("rows", "library", "overlap"),
    [(1, False, EARLY), (8, True, OVERLAP), (64, False, OVERLAP), (64, True, EARLY),
     (128, False, EARLY), (160, False, OVERLAP)],
)  # fmt: skip
def test_overlapping_launches_in_a_graph_change_no_bit(
    rows: int, library: bool, overlap: int
) -> None:
    """Norm, product, gated product, product, over and over: each reads what the one before wrote.
    With `library`, cuBLAS takes every other product."""
    layers = [
        (random(4096, 4096) / 64, random(8192, 4096) / 64, random(4096, 4096) / 64)
        for _ in range(6)
    ]
    scale, start = random(4096), random(rows, 4096)
    sums = poisoned_sums()

    def chain(pdl: int) -> torch.Tensor:
        x, residual = start * 0, start + 0  # kernels: what overlaps has one before it
        for first, wide, last in layers * 2:
            normed, middle, thin = (torch.empty_like(start) for _ in range(3))
            rms_norm(x, scale, out=normed, epsilon=1e-5, residual=residual, pdl=pdl)
            if library:
                torch.mm(normed, first.t(), out=middle)
            else:
                few_rows_product(normed, first, out=middle, sums=sums, pdl=pdl)
            few_rows_product(middle, wide, out=thin, gated=True, sums=sums, pdl=pdl)
            x = torch.empty_like(start)
            few_rows_product(thin, last, out=x, sums=sums, pdl=pdl)
        return x + residual

    expected = chain(APART)
    assert expected.isfinite().all()
    replay = captured(lambda: chain(overlap))
    for _ in range(20):
        assert torch.equal(replay(), expected)


@pytest.mark.parametrize("rows", [1, 3, 8, 24, 64, 80, 96, 128, 192])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e4])  # of the residual stream
def test_what_is_added_to_the_residual_is_normed_by_who_reads_it(
    rows: int, biased: bool, size: float
) -> None:
    """Against float64, from the rounded residual on; a row's squares are parts of any tile."""
    x, first = random(rows, 904), random(1000, 904) / 30
    plain, wide = random(600, 1000) / 32, random(2 * 600, 1000) / 32
    norm, start = torch.randn(1000, device="cuda") + 1, random(rows, 1000) * size
    bias = random(1000) if biased else None
    sums = poisoned_sums()
    sums.squares.fill_(torch.nan)
    residual, out = start.clone(), torch.full((rows, 1000), torch.nan, device="cuda", dtype=BF16)
    unnormed = few_rows_product(
        x, first, out=out, bias=bias, sums=sums, residual=Residual(residual, norm, 1e-5)
    )
    assert unnormed is not None
    added = x.double() @ first.double().T + (0 if bias is None else bias.double())
    assert relative_error(residual, start.double() + added.to(BF16).double()) < BOUND
    normed, _ = reference_rms_norm(residual, norm, 1e-5)
    thin = torch.full((rows, 600), torch.nan, device="cuda", dtype=BF16)
    few_rows_product(unnormed, plain, out=thin, sums=sums)
    assert relative_error(thin, normed @ plain.double().T) < BOUND
    few_rows_product(unnormed, wide, out=thin, sums=sums, gated=True)
    assert relative_error(thin, reference_silu_mul(normed @ wide.double().T)) < 2 * BOUND
    assert not sums.counters.any(), "a merge left its counter behind"


@pytest.mark.parametrize(
    ("rows", "overlap"),
    [(1, EARLY), (8, OVERLAP), (64, EARLY), (80, OVERLAP), (128, OVERLAP)],
)
def test_overlapping_products_that_norm_what_they_read_change_no_bit(
    rows: int, overlap: int
) -> None:
    layers = [
        (random(4096, 4096) / 64, random(8192, 4096) / 64, random(4096, 4096) / 64)
        for _ in range(6)
    ]
    norm, start = torch.randn(4096, device="cuda") + 1, random(rows, 4096)
    sums = poisoned_sums()

    def chain(pdl: int) -> torch.Tensor:
        residual, x = start + 0, start * 1
        to = Residual(residual, norm, 1e-5)
        for first, wide, last in layers * 2:
            for weight in (first, last):
                out = torch.empty_like(start)
                unnormed = few_rows_product(x, weight, out=out, sums=sums, residual=to, pdl=pdl)
                assert unnormed is not None
                x = torch.empty_like(start)
                few_rows_product(unnormed, wide, out=x, gated=True, sums=sums, pdl=pdl)
        return x + residual

    expected = chain(APART)
    assert expected.isfinite().all()
    replay = captured(lambda: chain(overlap))
    for _ in range(20):
        assert torch.equal(replay(), expected)


def captured(function: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()

    def replay() -> torch.Tensor:
        out.fill_(torch.nan)
        graph.replay()
        return out

    return replay
