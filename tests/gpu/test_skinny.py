"""Products of a few rows on a card: against float64, again and again, and amid a chain of kernels
whose launches overlap."""

from collections.abc import Callable

import pytest

pytest.importorskip("triton")

import torch

from engine.kernels.launch import APART, EARLY, OVERLAP
from engine.kernels.norm import rms_norm
from engine.kernels.silu import reference_silu_mul
from engine.kernels.skinny import PartialSums, skinny
from engine.kernels.skinny_plan import SkinnyConfig, config_for, pad_rows, stages_for
from engine.kernels.testing import relative_error

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
    rows: int, outer: int, inner: int, *, gated: bool, biased: bool, general: bool = False,
    dtype: torch.dtype = BF16, config: SkinnyConfig | None = None,
) -> None:  # fmt: skip
    x = random(rows, inner, dtype=dtype)
    weight = random(outer * (1 + gated), inner, dtype=dtype) / inner**0.5
    bias = random(len(weight), dtype=dtype) if biased else None
    sums = poisoned_sums()
    out = torch.full((rows, outer), torch.nan, device="cuda", dtype=dtype)
    skinny(x, weight, out=out, bias=bias, gated=gated, sums=sums, config=config, general=general)
    expected = x.double() @ weight.double().T
    if bias is not None:
        expected += bias.double()
    error = relative_error(out, reference_silu_mul(expected) if gated else expected)
    assert error < BOUND, (error, config)
    assert not sums.counters.any(), "a merge left its counter behind"


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16, 31, 33, 64, 77, 128])
@pytest.mark.parametrize(
    ("outer", "inner", "gated"),
    [(6144, 4096, False), (4096, 14336, False), (14336, 4096, True), (1000, 904, False),
     (1000, 904, True), (40, 24, False)],
)  # fmt: skip
def test_products_match_float64(rows: int, outer: int, inner: int, gated: bool) -> None:
    for biased in (False, True):
        check(rows, outer, inner, gated=gated, biased=biased)


@pytest.mark.parametrize("rows", [9, 128])
@pytest.mark.parametrize(
    ("gated", "pair", "half", "block_in"),
    [(False, False, 64, 128), (False, True, 64, 64), (False, True, 128, 64), (False, True, 64, 256),
     (True, True, 64, 128), (True, True, 128, 64)],
)  # fmt: skip
def test_every_way_of_cutting_gives_the_same(
    rows: int, gated: bool, pair: bool, half: int, block_in: int
) -> None:
    stages = min(stages_for(half * (1 + pair), block_in, pad_rows(rows)), 7)
    if not stages:
        pytest.skip("no room for a stage")
    for splits in (1, 2, 5):
        for programs in (1, 7, 132):
            config = SkinnyConfig(
                half=half, pair=pair, block_in=block_in, stages=stages, splits=splits,
                programs=programs,
            )  # fmt: skip
            check(rows, 1336, 1448, gated=gated, biased=True, config=config)


@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_the_general_kernel_matches_float64(rows: int, gated: bool, dtype: torch.dtype) -> None:
    config = SkinnyConfig(half=64, block_in=64, stages=3, splits=3, programs=100)
    check(rows, 1000, 904, gated=gated, biased=True, general=True, dtype=dtype, config=config)


@pytest.mark.parametrize("rows", [8, 64])
def test_bits_do_not_depend_on_who_comes_last(rows: int) -> None:
    x, weight, sums = random(rows, 4096), random(4096, 4096), poisoned_sums()
    outs = []
    for _ in range(50):
        out = torch.full((rows, 4096), torch.nan, device="cuda", dtype=BF16)
        skinny(x, weight, out=out, sums=sums, config=config_for(rows, 4096, 4096))
        outs.append(out)
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("rows", [1, 8, 64, 128])
@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("overlap", [OVERLAP, EARLY])
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
                skinny(normed, first, out=middle, sums=sums, pdl=pdl)
            skinny(middle, wide, out=thin, gated=True, sums=sums, pdl=pdl)
            x = torch.empty_like(start)
            skinny(thin, last, out=x, sums=sums, pdl=pdl)
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
