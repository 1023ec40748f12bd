"""How products of a few rows are cut: by the plan, and by a double of the kernel."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch

from tests.engine.kernels.general_few_rows import general_few_rows_product
from twolane.engine.kernels.products import few_rows_launch
from twolane.engine.kernels.products.few_rows import PartialSums, few_rows_product
from twolane.engine.kernels.products.few_rows_plan import (
    MAX_ROWS,
    PARTIAL_VALUES,
    RING_BYTES,
    FewRowsConfig,
    candidates,
    config_for,
    pad_rows,
    parts_of,
    tiles_for,
)
from twolane.engine.kernels.products.row_padding import padded_empty, rows_with_padding
from twolane.engine.kernels.products.unnormed import Residual
from twolane.engine.kernels.rows.norm import reference_rms_norm
from twolane.engine.kernels.rows.silu import reference_silu_mul
from twolane.engine.kernels.testing import relative_error
from twolane.engine.model_files.fp8 import Fp8Rows

SHAPES = [
    (6144, 4096, False), (4096, 4096, False), (14336, 4096, True), (4096, 14336, False),
    (128_256, 4096, False), (8192, 28_672, False), (28_672, 8192, True), (152, 8, False),
    (896, 896, False), (4864, 896, True), (151_936, 896, False),
]  # fmt: skip


def config(programs: int, *, split: bool, pair: bool = True, stages: int = 2) -> FewRowsConfig:
    return FewRowsConfig(
        half=64, pair=pair, block_in=32, stages=stages, split=split, programs=programs
    )


@pytest.mark.parametrize(
    ("rows", "outer", "inner"), [(1, 128, 128), (5, 200, 136), (17, 80, 120), (33, 264, 40)]
)
@pytest.mark.parametrize(("split", "programs"), [(False, 2), (True, 2), (True, 3), (True, 4)])
@pytest.mark.parametrize(("gated", "pair"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_match_float64_at_odd_shapes(
    rows: int, outer: int, inner: int, split: bool, programs: int, gated: bool, pair: bool,
    biased: bool,
) -> None:  # fmt: skip
    x, weight = torch.randn(rows, inner), torch.randn(outer * (1 + gated), inner)
    bias = torch.randn(len(weight)) if biased else None
    sums = PartialSums("cpu", values=1 << 18, programs=16)
    sums.values.fill_(torch.nan)
    out = torch.full((rows, outer), torch.nan)
    cut = config(programs, split=split, pair=pair)
    general_few_rows_product(x, weight, out=out, bias=bias, gated=gated, sums=sums, config=cut)
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert relative_error(out, reference_silu_mul(expected) if gated else expected) < 1e-6
    assert not sums.counters.any(), "a merge left its counter behind"


@pytest.mark.parametrize(("split", "programs"), [(False, 2), (True, 3)])
@pytest.mark.parametrize(("gated", "pair"), [(False, False), (False, True), (True, True)])
def test_sums_of_scaled_rows_and_weights_are_scaled(
    split: bool, programs: int, gated: bool, pair: bool
) -> None:
    """By each row's and each output's own scale, before the bias and the gate; the double takes
    float32 in place of FP8."""
    x = Fp8Rows(torch.randn(17, 120), torch.rand(17) + 0.5)
    weight = Fp8Rows(torch.randn(80 * (1 + gated), 120) / 11, torch.rand(80 * (1 + gated)) + 0.5)
    bias, sums = torch.randn(len(weight)), PartialSums("cpu", values=1 << 18, programs=16)
    out = torch.full((17, 80), torch.nan)
    cut = config(programs, split=split, pair=pair)
    general_few_rows_product(x, weight, out=out, bias=bias, gated=gated, sums=sums, config=cut)
    expected = x.dequantise().double() @ weight.dequantise().double().T + bias.double()
    assert relative_error(out, reference_silu_mul(expected) if gated else expected) < 1e-6


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize(("split", "programs"), [(False, 2), (True, 3)])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_what_is_added_to_the_residual_is_normed_by_who_reads_it(
    rows: int, split: bool, programs: int, pair: bool, biased: bool
) -> None:
    """Two products read the same rows; squares that no tile has left are never read."""
    x, first, norm = torch.randn(rows, 120), torch.randn(200, 120), torch.rand(200) + 0.5
    bias = torch.randn(200) if biased else None
    start = torch.randn(rows, 200) * 9
    residual, out = start.clone(), torch.full((rows, 200), torch.nan)
    sums = PartialSums("cpu", values=1 << 18, programs=16)
    sums.squares.fill_(torch.nan)
    cut = config(programs, split=split, pair=pair)
    unnormed = general_few_rows_product(
        x, first, out=out, bias=bias, sums=sums, config=cut,
        residual=Residual(residual, norm, 1e-3),
    )  # fmt: skip
    assert unnormed is not None
    assert unnormed.values is out
    product = x.double() @ first.double().T + (0 if bias is None else bias.double())
    normed, added = reference_rms_norm(product, norm, 1e-3, start)
    assert relative_error(residual, added) < 1e-6
    for outer, gated in ((80, False), (72, True)):
        weight = torch.randn(outer * (1 + gated), 200) / 14
        read = torch.full((rows, outer), torch.nan)
        reader = config(2, split=False, pair=gated)
        general_few_rows_product(unnormed, weight, out=read, gated=gated, sums=sums, config=reader)
        expected = normed @ weight.double().T
        assert relative_error(read, reference_silu_mul(expected) if gated else expected) < 1e-6


def test_rows_before_their_norm_are_not_read_where_their_squares_would_be_overwritten() -> None:
    sums = PartialSums("cpu", values=1 << 16)
    x, weight, out = torch.randn(3, 64), torch.randn(64, 64), torch.empty(3, 64)
    to, cut = Residual(torch.randn(3, 64), torch.ones(64), 1e-5), config(1, split=False)
    unnormed = general_few_rows_product(x, weight, out=out, sums=sums, residual=to, config=cut)
    assert unnormed is not None
    with pytest.raises(AssertionError, match="overwritten"):
        general_few_rows_product(
            unnormed, weight, out=torch.empty(3, 64), sums=sums, residual=to, config=cut
        )


def test_half_precision_sums_in_float32() -> None:
    x, weight = torch.randn(3, 512).half(), torch.randn(64, 512).half()
    out = torch.full((3, 64), torch.nan, dtype=torch.float16)
    general_few_rows_product(
        x, weight, out=out, sums=PartialSums("cpu", values=1 << 16), config=config(3, split=True)
    )
    assert relative_error(out, x.double() @ weight.double().T) < 3e-4


def test_every_number_of_programs_shares_all_chunks() -> None:
    """From one for everything, over several for a tile, to one for each chunk."""
    x, weight, sums = torch.randn(2, 160), torch.randn(328, 160), PartialSums("cpu")
    expected = x.double() @ weight.double().T
    for split in (False, True):
        for programs in range(1, 16):  # three tiles of five chunks
            out = torch.full((2, 328), torch.nan)
            general_few_rows_product(
                x, weight, out=out, sums=sums, config=config(programs, split=split)
            )
            assert relative_error(out, expected) < 1e-6, (split, programs)
            assert not sums.counters.any()


@pytest.mark.parametrize(
    "refused", [config(2, split=False, stages=1), config(2, split=True, stages=1),
                config(16, split=True)],
)  # fmt: skip
def test_what_would_wait_for_ever_is_refused(refused: FewRowsConfig) -> None:
    """A ring of one stage, whose stage is freed when the next has come; a program with nothing to
    do, whose part of a tile would be waited for."""
    x, weight = torch.randn(2, 160), torch.randn(328, 160)
    with pytest.raises(AssertionError):
        general_few_rows_product(
            x, weight, out=torch.empty(2, 328), sums=PartialSums("cpu"), config=refused
        )


@pytest.mark.parametrize(("outer", "inner", "gated"), SHAPES)
@pytest.mark.parametrize("rows", [1, 8, 9, 31, 64, 65, 128, 192])
@pytest.mark.parametrize("ring_bytes", [104 * 1024, RING_BYTES])
def test_a_plan_covers_every_chunk_within_a_multiprocessor(
    outer: int, inner: int, gated: bool, rows: int, ring_bytes: int
) -> None:
    every = list(candidates(rows, outer, inner, gated=gated, ring_bytes=ring_bytes))
    assert config_for(rows, outer, inner, gated=gated, ring_bytes=ring_bytes) in every
    rows_pad = pad_rows(rows)
    assert rows_pad >= rows
    for found in every:
        stage = 2 * found.block_in * (found.weights + rows_pad)
        assert found.stages >= 2
        assert found.stages * stage <= ring_bytes
        assert 1 <= found.programs <= 132
        n_tiles = tiles_for(outer, found, gated=gated)
        n_chunks = -(-inner // found.block_in)
        assert found.programs <= n_tiles * (n_chunks if found.split else 1)
        assert found.partial_values(rows_pad) <= PARTIAL_VALUES


def test_values_of_one_byte_are_planned_as_half_as_many_of_two() -> None:
    for rows in (1, 64, 128):
        wide = config_for(rows, 4096, 14336 // 2)
        cut = config_for(rows, 4096, 14336, itemsize=1)
        assert cut == replace(wide, block_in=2 * wide.block_in)


@pytest.mark.parametrize("rows", [1, 8, 9, 65, 80, 128, 129, 192, 193])
def test_rows_are_read_with_the_padding_behind_them_and_not_beyond_it(rows: int) -> None:
    x = padded_empty(torch.empty(0), rows, 16)
    assert x.shape == (rows, 16)
    assert x.is_contiguous()
    padded = pad_rows(rows) if rows <= MAX_ROWS else rows
    assert rows_with_padding(x, padded) == padded
    assert x.untyped_storage().nbytes() == rows_with_padding(x, 1 << 20) * 16 * 4


def test_rows_without_padding_are_read_alone() -> None:
    assert rows_with_padding(torch.empty(5, 16), 8) == 5
    assert rows_with_padding(torch.empty(9, 16)[2:7], 8) == 7
    assert rows_with_padding(torch.empty(6, 32)[:5, 16:], 8) == 6


@pytest.mark.parametrize(
    ("rows", "parts"),
    [(1, (8, 0)), (9, (16, 0)), (64, (64, 0)), (65, (64, 16)), (80, (64, 16)), (81, (64, 32)),
     (97, (128, 0)), (129, (128, 16)), (145, (128, 32)), (161, (128, 64)), (192, (128, 64))],
)  # fmt: skip
def test_rows_are_padded_to_one_power_of_two_or_two(rows: int, parts: tuple[int, int]) -> None:
    assert parts_of(pad_rows(rows)) == parts
    most = 2 * rows if rows <= 64 else 4 * rows / 3
    assert rows <= sum(parts) <= max(8, most)


@pytest.mark.parametrize("rows", [0, MAX_ROWS + 1])
def test_rows_that_no_build_takes_are_refused(rows: int) -> None:
    with pytest.raises(AssertionError):
        pad_rows(rows)


@pytest.mark.parametrize("rows", [65, 80, 96, 97, 128, 144, 160, 192])
@pytest.mark.parametrize("itemsize", [1, 2])
def test_a_chunk_of_many_rows_is_as_wide_as_the_swizzle(rows: int, itemsize: int) -> None:
    for outer, inner, gated in SHAPES:
        cut = config_for(rows, outer, inner, gated=gated, itemsize=itemsize)
        assert cut.block_in * itemsize == 128


def test_parts_are_refused_where_their_boxes_would_not_lie_one_behind_the_other() -> None:
    x, weight = torch.randn(80, 512), torch.randn(64, 512)
    wide = FewRowsConfig(half=64, pair=False, block_in=64, stages=2, split=False, programs=1)
    with pytest.raises(AssertionError, match="one behind the other"):
        few_rows_product(x, weight, out=torch.empty(80, 64), sums=PartialSums("cpu"), config=wide)


def test_a_second_launch_of_a_variant_goes_to_its_compiled_kernel_with_the_same_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other rows, weights and numbers of rows are the same variant; another tile is not."""
    launches: list[tuple[str, list[object]]] = []

    class Compiled:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *given: launches.append(("known", [grid, *map(plainly, given)]))

    def launch(kernel: object, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        def run(*given: object, **options: object) -> Compiled:
            launches.append(("first", [grid, *map(plainly, given)]))
            return Compiled()

        return run

    def plainly(given: Any) -> object:
        if isinstance(given, torch.Tensor):
            return given.data_ptr()
        if hasattr(given, "strides"):
            return [given.base.data_ptr(), given.shape, given.strides, given.padding]
        return given

    monkeypatch.setattr(few_rows_launch, "launch", launch)
    known: dict[Any, Any] = {}
    sums, cut = PartialSums("cpu", values=1 << 18, programs=16), config(2, split=True)
    for rows, tile in ((5, cut), (5, cut), (7, cut), (7, replace(cut, block_in=64))):
        x, weight = padded_empty(torch.empty(0).half(), rows, 128), torch.randn(256, 128).half()
        out = torch.empty(rows, 256)
        for variants in (known, {}):  # the second time as if it were unknown
            monkeypatch.setattr(few_rows_launch, "_known", variants)
            few_rows_product(x, weight, out=out, sums=sums, config=tile)
    how = [name for name, _ in launches]
    assert how == ["first", "first", "known", "first", "known", "first", "first", "first"]
    pairs = zip(launches[::2], launches[1::2], strict=True)
    assert all(one == two for (_, one), (_, two) in pairs)
