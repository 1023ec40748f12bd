"""Quantises rows to FP8 with one scale each, alone or at the end of a kernel with rows in
registers.

Bytes per row, alone: width * itemsize read, width + 4 written. One program per row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import next_power_of_2
from twolane.engine.model_files.fp8 import LARGEST, SMALLEST_SCALE, Fp8Rows

MAX_WIDTH = 32768
_LARGEST: tl.constexpr = tl.constexpr(LARGEST)
_SMALLEST: tl.constexpr = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def store_scale(row, scale_at):
    """Store a row's scale, and return the row divided by it: at most 448. Non-finite values stay
    non-finite, as NaN or through the scale."""
    scale = tl.maximum(tl.max(tl.abs(row), 0) / _LARGEST, _SMALLEST)
    tl.store(scale_at, scale)
    return row / scale


@triton.jit
def _quantise_kernel(
    x, out, scales, x_stride, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, PDL: tl.constexpr
):
    ready(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    held = tl.load(x + row * x_stride + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    small = store_scale(held, scales + row).to(out.dtype.element_ty)
    tl.store(out + row * WIDTH + column, small, mask=column < WIDTH)


def quantise_rows(x: torch.Tensor, *, out: Fp8Rows, pdl: int = 0) -> None:
    """x `[n, width]` (rows may be strided) -> the same rows as FP8, dense."""
    n, width = x.shape
    assert out.shape == x.shape
    assert width <= MAX_WIDTH
    assert x.stride(1) == 1
    launch(_quantise_kernel, (n,))(
        x,
        out.values,
        out.scales,
        x.stride(0),
        WIDTH=width,
        WIDTH_PAD=next_power_of_2(width),
        PDL=pdl,
        num_warps=warps_for(width),
        launch_pdl=pdl,
    )


def warps_for(width: int) -> int:
    """Enough warps for a row of so many float32s to fit their registers easily."""
    return 4 if width <= 4096 else 8 if width <= 8192 else 16
