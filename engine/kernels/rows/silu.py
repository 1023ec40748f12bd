"""silu(gate) * up of a fused product's two halves.

Bytes per token: 2 * width read, width written. Elementwise; 16-byte accesses. For FP8, which needs
a row's scale first, one program holds a whole row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.rows.quantise import MAX_WIDTH, store_scale, warps_for
from twolane.engine.kernels.sizes import cdiv, next_power_of_2
from twolane.engine.model_files.fp8 import Fp8Rows

BLOCK = 2048


@triton.jit
def _silu_kernel(gate_up, out, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    ready(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, gate / (1.0 + tl.exp(-gate)) * up, mask=keep)


@triton.jit
def _silu_row_kernel(
    gate_up, out, scales, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, PDL: tl.constexpr
):
    ready(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    keep = column < WIDTH
    at = gate_up + row * 2 * WIDTH + column
    gate = tl.load(at, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=keep, other=0.0).to(tl.float32)
    small = store_scale(gate / (1.0 + tl.exp(-gate)) * up, scales + row)
    tl.store(out + row * WIDTH + column, small.to(out.dtype.element_ty), mask=keep)


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor | Fp8Rows, pdl: int = 0) -> None:
    """gate_up `[n, 2 * width]` (gate, up) -> out `[n, width]`, both dense; float32 arithmetic.

    For 16-byte accesses, width must be a multiple of 16. FP8 rows also get their scales here.
    """
    n, width = out.shape
    if isinstance(out, Fp8Rows):
        assert gate_up.shape == (n, 2 * width)
        assert gate_up.is_contiguous()
        assert width <= MAX_WIDTH
        launch(_silu_row_kernel, (n,))(
            gate_up, out.values, out.scales,
            WIDTH=width, WIDTH_PAD=next_power_of_2(width), PDL=pdl,
            num_warps=min(16, 2 * warps_for(width)), launch_pdl=pdl,
        )  # fmt: skip
        return
    assert gate_up.shape == (n, 2 * width)
    assert gate_up.is_contiguous()
    assert out.is_contiguous()
    launch(_silu_kernel, (n, cdiv(width, BLOCK)))(
        gate_up, out, width, BLOCK=BLOCK, PDL=pdl, num_warps=8, launch_pdl=pdl
    )


def reference_silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """In float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
