"""Products of a few rows in the interpreter (the general kernel), and how they are cut."""

import pytest

pytest.importorskip("triton")

import torch

from engine.kernels.silu import reference_silu_mul
from engine.kernels.skinny import PartialSums, skinny
from engine.kernels.skinny_plan import RING_BYTES, SkinnyConfig, config_for, pad_rows, tiles_for
from engine.kernels.testing import relative_error

SHAPES = [
    (6144, 4096, False), (4096, 4096, False), (14336, 4096, True), (4096, 14336, False),
    (128_256, 4096, False), (8192, 28_672, False), (28_672, 8192, True), (152, 8, False),
    (896, 896, False), (4864, 896, True), (151_936, 896, False),
]  # fmt: skip


def config(splits: int, programs: int, *, pair: bool = True) -> SkinnyConfig:
    return SkinnyConfig(half=64, pair=pair, block_in=32, stages=2, splits=splits, programs=programs)


@pytest.mark.parametrize(
    ("rows", "outer", "inner"), [(1, 128, 64), (5, 200, 136), (17, 80, 88), (33, 264, 40)]
)
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("gated", "pair"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_match_float64_at_odd_shapes(
    rows: int, outer: int, inner: int, splits: int, gated: bool, pair: bool, biased: bool
) -> None:
    x, weight = torch.randn(rows, inner), torch.randn(outer * (1 + gated), inner)
    bias = torch.randn(len(weight)) if biased else None
    sums = PartialSums("cpu", values=1 << 18, tiles=16)
    sums.values.fill_(torch.nan)
    out = torch.full((rows, outer), torch.nan)
    cut = config(splits, 3, pair=pair)
    skinny(x, weight, out=out, bias=bias, gated=gated, sums=sums, config=cut)
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert relative_error(out, reference_silu_mul(expected) if gated else expected) < 1e-6
    assert not sums.counters.any(), "a merge left its counter behind"


def test_half_precision_sums_in_float32() -> None:
    x, weight = torch.randn(3, 512).half(), torch.randn(64, 512).half()
    out = torch.full((3, 64), torch.nan, dtype=torch.float16)
    skinny(x, weight, out=out, sums=PartialSums("cpu", values=1 << 16), config=config(3, 2))
    assert relative_error(out, x.double() @ weight.double().T) < 3e-4


def test_programs_may_be_fewer_or_more_than_items() -> None:
    x, weight = torch.randn(2, 64), torch.randn(256, 64)
    sums = PartialSums("cpu", values=1 << 16)
    outs = []
    for programs in (1, 2, 3, 9):
        out = torch.full((2, 256), torch.nan)
        skinny(x, weight, out=out, sums=sums, config=config(2, programs))
        outs.append(out)
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize(("outer", "inner", "gated"), SHAPES)
@pytest.mark.parametrize("rows", [1, 8, 9, 31, 64, 65, 128])
@pytest.mark.parametrize("ring_bytes", [104 * 1024, RING_BYTES])
def test_a_plan_covers_every_chunk_within_a_multiprocessor(
    outer: int, inner: int, gated: bool, rows: int, ring_bytes: int
) -> None:
    found = config_for(rows, outer, inner, gated=gated, ring_bytes=ring_bytes)
    rows_pad = pad_rows(rows)
    assert rows_pad >= rows
    stage = 2 * found.block_in * (found.weights + rows_pad)
    assert found.stages >= 3
    assert found.stages * stage <= ring_bytes
    n_items = tiles_for(outer, found, gated=gated) * found.splits
    assert found.programs <= 132
    assert found.programs * -(-n_items // found.programs) - n_items < found.programs
    room = PartialSums("cpu").values.numel()
    assert found.partial_values(n_items // found.splits, rows_pad) <= room
