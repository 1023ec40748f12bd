"""Products of a few rows with a weight matrix, bound by the time to read the weights.

Bytes: the weights once (out * in * itemsize, and a scale per output for FP8); the rows once per
program, from the L2 cache.
The inner dimension is not split: a program computes its outputs completely, so nothing is summed
across programs and, for one configuration, a row's bits depend only on that row.

The first weights are loaded before the wait for the kernel that writes the rows: if launches
overlap, memory is never idle between two of these kernels.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import cdiv
from twolane.engine.model_files.fp8 import Fp8Rows, Matrix


@triton.jit
def _gemv_kernel(
    x,
    weight,
    scales,
    bias,
    out,
    x_stride,
    weight_stride,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    PDL: tl.constexpr,
):
    output = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    column = tl.arange(0, BLOCK_IN)
    at = weight + output.to(tl.int64)[:, None] * weight_stride + column[None, :]
    is_output = (output < OUT)[:, None]
    held = tl.load(at, mask=is_output & (column < IN)[None, :], other=0.0)
    ready(PDL)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32),)  # noqa: RUF005
    for start in range(0, IN, BLOCK_IN):
        ahead = start + BLOCK_IN + column
        keep = is_output & (ahead < IN)[None, :]
        following = tl.load(at + start + BLOCK_IN, mask=keep, other=0.0)
        wide = held.to(tl.float32)
        added = ()
        for r in tl.static_range(ROWS):
            values = tl.load(
                x + r * x_stride + start + column, mask=start + column < IN, other=0.0
            ).to(tl.float32)
            added = added + (sums[r] + wide * values[None, :],)  # noqa: RUF005
        sums = added
        held = following
    for r in tl.static_range(ROWS):
        total = tl.sum(sums[r], 1)
        if SCALED:
            total *= tl.load(scales + output, mask=output < OUT, other=0.0)
        if BIASED:
            total += tl.load(bias + output, mask=output < OUT, other=0.0).to(tl.float32)
        tl.store(out + r * OUT + output, total, mask=output < OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemvConfig:
    """Build options of the kernel."""

    block_out: int
    block_in: int
    warps: int


def config_for(rows: int, *, fp8: bool = False) -> GemvConfig:
    """The best measured on an H200 for 1 and 2 rows, where this is faster than cuBLAS. Those for
    FP8, where 16 bytes per thread are twice as many weights, are not measured yet."""
    if fp8:
        return GemvConfig(block_out=4, block_in=2048, warps=8)
    if rows == 1:
        return GemvConfig(block_out=2, block_in=2048, warps=4)
    if rows == 2:
        return GemvConfig(block_out=4, block_in=2048, warps=8)
    return GemvConfig(block_out=4 if rows <= 4 else 2, block_in=1024, warps=4)  # registers


def gemv(
    x: torch.Tensor,
    weight: Matrix,
    *,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    config: GemvConfig | None = None,
    pdl: int = 0,
) -> None:
    """x `[rows, in]` times weight `[out, in]` transposed -> out `[rows, out]` dense; 1 to 8 rows.

    Products and sums are in float32, rounded once. `weight` must not change while the stream runs:
    its first bytes are read before the previous kernels have ended. FP8 weights are converted to
    float32; the rows are not rounded.
    """
    rows, inner = x.shape
    fp8 = isinstance(weight, Fp8Rows)
    config = config or config_for(rows, fp8=fp8)
    outer = len(weight)
    held = weight.values if isinstance(weight, Fp8Rows) else weight
    assert 1 <= rows <= 8
    assert weight.shape == (outer, inner)
    assert out.shape == (rows, outer)
    assert x.stride(1) == held.stride(1) == 1
    assert out.is_contiguous()
    launch(_gemv_kernel, (cdiv(outer, config.block_out),))(
        x,
        held,
        weight.scales if isinstance(weight, Fp8Rows) else held,
        held if bias is None else bias,
        out,
        x.stride(0),
        held.stride(0),
        OUT=outer,
        IN=inner,
        ROWS=rows,
        BLOCK_OUT=config.block_out,
        BLOCK_IN=config.block_in,
        SCALED=fp8,
        BIASED=bias is not None,
        PDL=pdl,
        num_warps=config.warps,
        launch_pdl=pdl,
    )
