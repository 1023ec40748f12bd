"""Products of 1 to 192 rows with a weight matrix, bound by the time to read the weights.

Bytes: the weights once (out * in * itemsize), from memory; the rows once per tile of outputs, and
partial sums of shared tiles once each way, from the L2 cache. With `gated`, silu(gate) * up follows
in registers, which saves a launch and writing and reading [rows, 2 * units]. Weights in FP8 take
rows in FP8. With `residual`, the addition to the residual stream and the norm's sums of squares
follow in registers, which saves the norm's launch (`unnormed`).

Sums are in float32, in an order fixed by the configuration: the same call gives the same bits.
"""

from typing import Any

import torch

from twolane.engine.kernels.launch import card_of
from twolane.engine.kernels.products.few_rows_plan import (
    MAX_ROWS,
    PARTIAL_VALUES,
    SWIZZLE_BYTES,
    FewRowsConfig,
    config_for,
    pad_rows,
    parts_of,
    tiles_for,
)
from twolane.engine.kernels.products.unnormed import Residual, Unnormed
from twolane.engine.kernels.sizes import cdiv
from twolane.engine.model_files.fp8 import FP8, Fp8Rows, Matrix

SQUARES = 256 * MAX_ROWS  # sums of squares: of 64 outputs or more, for rows of up to 16,384


class PartialSums:
    """Where programs store partial sums of shared tiles; one per stream. `counters` are zero
    between launches. `squares` are those of `Unnormed` rows."""

    def __init__(
        self, device: torch.device | str, *, values: int = PARTIAL_VALUES, programs: int = 1024
    ):
        self.values = torch.empty(values, dtype=torch.float32, device=device)
        self.counters = torch.zeros(programs, dtype=torch.int32, device=device)
        self.squares = torch.empty(SQUARES, dtype=torch.float32, device=device)


def few_rows_product(
    x: Matrix | Unnormed,
    weight: Matrix,
    *,
    out: torch.Tensor,
    sums: PartialSums,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    residual: Residual | None = None,
    config: FewRowsConfig | None = None,
    pdl: int = 0,
) -> Unnormed | None:
    """x `[rows, in]` times weight `[out, in]` transposed, plus bias [out] -> out `[rows, out]`;
    requires `can_stream`.

    With `gated`, weight is `[2 * units, in]` (gates, ups), bias likewise, and out `[rows, units]` =
    silu(gate) * up. Rows of x and weight must start at multiples of 16 bytes; out is dense.
    Of FP8 rows, out has another dtype.
    With `residual`, residual += the product, rounded as out would be, and out = residual * norm:
    rows before their norm, which are returned with their squares, in memory of `sums`.
    What follows x in its storage may be read. `weight` must not change while the stream runs: with
    `pdl` its first bytes are read before the previous kernels have ended.

    Asserted: 1 to 192 rows, shapes, strides, a chunk for each program, two stages, room for partial
    sums.
    """
    from twolane.engine.kernels.products.few_rows_launch import launch_streamed  # in Gluon

    rows, inner = x.shape
    values, weights = _values(x), _values(weight)
    config = config or config_for(rows, out.shape[1], inner, gated=gated, itemsize=values.itemsize)
    rows_pad = pad_rows(rows)
    launch_streamed(
        values,
        weights,
        checked_arguments(
            x, weight, out=out, sums=sums, bias=bias, gated=gated, residual=residual,
            config=config, rows_pad=rows_pad,
        ),
        config=config,
        rows_pad=rows_pad,
        gated=gated,
        biased=bias is not None,
        scaled=isinstance(x, Fp8Rows),
        normed=isinstance(x, Unnormed),
        adds=residual is not None,
        pdl=pdl,
    )  # fmt: skip
    return unnormed(out, residual, sums, config, rows_pad)


def unnormed(
    out: torch.Tensor,
    residual: Residual | None,
    sums: PartialSums,
    config: FewRowsConfig,
    rows_pad: int,
) -> Unnormed | None:
    """What a product that added to the residual has left."""
    if residual is None:
        return None
    parts = tiles_for(out.shape[1], config, gated=False)
    squares = sums.squares[: parts * rows_pad].view(parts, rows_pad)
    return Unnormed(out, squares, residual.epsilon)


def checked_arguments(
    x: Matrix | Unnormed,
    weight: Matrix,
    *,
    out: torch.Tensor,
    sums: PartialSums,
    bias: torch.Tensor | None,
    gated: bool,
    residual: Residual | None,
    config: FewRowsConfig,
    rows_pad: int,
) -> tuple[Any, ...]:
    """The kernel's arguments after x and weight. Asserts the conditions of `few_rows_product`."""
    rows, inner = x.shape
    n_out = out.shape[1]
    n_tiles = tiles_for(n_out, config, gated=gated)
    assert config.pair or not gated
    assert weight.shape == (n_out * (1 + gated), inner)
    assert len(out) == rows
    values, weights = _values(x), _values(weight)
    assert values.dtype == weights.dtype
    assert values.stride(1) == weights.stride(1) == 1
    assert all(
        t.stride(0) * t.itemsize % 16 == 0 and t.data_ptr() % 16 == 0 for t in (values, weights)
    )
    row_scales = scales = sums.values  # not read
    if isinstance(x, Fp8Rows):
        assert isinstance(weight, Fp8Rows)
        row_scales, scales = x.scales, weight.scales
        assert row_scales.is_contiguous()
        assert scales.is_contiguous()
    assert out.is_contiguous()
    assert bias is None or (len(bias) == len(weight) and bias.is_contiguous())
    n_chunks = cdiv(inner, config.block_in)
    is_one_box = config.block_in * values.itemsize <= SWIZZLE_BYTES
    assert not parts_of(rows_pad)[1] or is_one_box, "boxes of parts lie one behind the other"
    assert config.stages >= 2, "a stage is released when the next is loaded"
    assert not config.split or config.programs <= min(n_tiles * n_chunks, len(sums.counters))
    assert config.partial_values(rows_pad) <= sums.values.numel()
    n_parts, epsilon = 0, 0.0
    if isinstance(x, Unnormed):
        n_parts, epsilon = len(x.squares), x.epsilon
        assert residual is None, "the squares would be overwritten while they are read"
        assert x.squares.data_ptr() == sums.squares.data_ptr()
        assert x.squares.shape[1] == rows_pad
    held, norm = out, sums.squares  # not read
    if residual is not None:
        held, norm = residual.values, residual.norm
        assert not gated
        assert held.shape == out.shape
        assert held.dtype == out.dtype, "not told apart where variants are"
        assert held.is_contiguous()
        assert norm.shape == (n_out,)
        assert norm.is_contiguous()
        assert n_tiles * rows_pad <= sums.squares.numel()
    return (
        out,
        weights if bias is None else bias,
        sums.values,
        sums.counters,
        row_scales,
        scales,
        held,
        norm,
        sums.squares,
        rows,
        n_out,
        n_tiles,
        n_chunks,
        n_parts,
        1 / inner,
        epsilon,
    )


def can_stream(x: torch.Tensor) -> bool:
    """Whether the kernel of `few_rows_hopper` supports x's dtype and card."""
    card = card_of(x.device)
    return x.dtype in (torch.bfloat16, torch.float16, FP8) and card is not None and card.is_hopper


def _values(matrix: Matrix | Unnormed) -> torch.Tensor:
    return matrix if isinstance(matrix, torch.Tensor) else matrix.values
