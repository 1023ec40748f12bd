"""RMSNorm, fused with the preceding addition to the residual stream.

Bytes per row: the layer's output and the residual read, the residual and the normed row written; 4
* width * itemsize in total (2 without a residual; FP8 rows take a byte per value and a scale; the
scales of an unscaled product are read from the cache). One program per row, kept in registers, so
that a row's bits depend only on that row. The fusion is that of vLLM's fused_add_rms_norm.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.rows.quantise import store_scale
from twolane.engine.kernels.sizes import next_power_of_2
from twolane.engine.model_files.fp8 import Fp8Rows, Unscaled

MAX_WIDTH = 16384


@triton.jit
def _norm_kernel(
    x,
    residual,
    weight,
    out,
    scales,
    x_row_scales,
    x_scales,
    epsilon,
    x_stride,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    ADD: tl.constexpr,
    SCALED: tl.constexpr,
    FP8: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    keep = column < WIDTH
    scale = tl.load(weight + column, mask=keep, other=0.0).to(tl.float32)  # before the wait
    ready(PDL)
    held = tl.load(x + row * x_stride + column, mask=keep, other=0.0).to(tl.float32)
    if SCALED:
        held *= tl.load(x_row_scales + row) * tl.load(x_scales + column, mask=keep, other=0.0)
    if ADD:
        held += tl.load(residual + row * WIDTH + column, mask=keep, other=0.0).to(tl.float32)
        rounded = held.to(residual.dtype.element_ty)
        tl.store(residual + row * WIDTH + column, rounded, mask=keep)
        held = rounded.to(tl.float32)  # what the next addition will read
    mean = tl.sum(held * held, 0) / WIDTH
    normed = held * tl.rsqrt(mean + epsilon) * scale
    if FP8:
        normed = store_scale(normed, scales + row)
    tl.store(out + row * WIDTH + column, normed.to(out.dtype.element_ty), mask=keep)


def rms_norm(
    x: torch.Tensor | Unscaled,
    weight: torch.Tensor,
    *,
    out: torch.Tensor | Fp8Rows,
    epsilon: float,
    residual: torch.Tensor | None = None,
    pdl: int = 0,
) -> None:
    """x `[n, width]` (rows may be strided) -> out `[n, width]` dense; arithmetic in float32.

    With `residual` `[n, width]` dense, of any float dtype: first residual += x, in place, rounded
    to its dtype, and that sum is normed. FP8 rows also get their scales here. Of an unscaled
    product, x is what its scales make of it.
    """
    row_scales = scales = weight  # not read
    is_scaled = isinstance(x, Unscaled)
    if isinstance(x, Unscaled):
        row_scales, scales = x.row_scales, x.scales
        x = x.values
    n, width = x.shape
    assert width <= MAX_WIDTH
    assert x.stride(1) == 1
    values = out.values if isinstance(out, Fp8Rows) else out
    assert values.shape == x.shape
    assert values.is_contiguous()
    assert residual is None or (residual.is_contiguous() and residual.shape == x.shape)
    launch(_norm_kernel, (n,))(
        x,
        x if residual is None else residual,
        weight,
        values,
        out.scales if isinstance(out, Fp8Rows) else values,
        row_scales,
        scales,
        epsilon,
        x.stride(0),
        WIDTH=width,
        WIDTH_PAD=next_power_of_2(width),
        ADD=residual is not None,
        SCALED=is_scaled,
        FP8=isinstance(out, Fp8Rows),
        PDL=pdl,
        num_warps=4 if width <= 2048 else 8,
        launch_pdl=pdl,
    )


def reference_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, new residual), in float64."""
    total = x.double() if residual is None else x.double() + residual.double()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon)
    return total * scale * weight.double(), total
