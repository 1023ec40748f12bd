"""silu(gate) * up of a fused product's two halves.

Bytes a token: 2 * width read, width written. Elementwise; 16-byte accesses.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from engine.kernels.launch import ready

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


def silu_mul(gate_up: torch.Tensor, *, out: torch.Tensor, pdl: int = 0) -> None:
    """gate_up `[n, 2 * width]` (gate, up) -> out `[n, width]`, both dense; float32 arithmetic.

    For 16-byte accesses, width must be a multiple of 16.
    """
    n, width = out.shape
    assert gate_up.shape == (n, 2 * width)
    assert gate_up.is_contiguous()
    assert out.is_contiguous()
    _silu_kernel[(n, triton.cdiv(width, BLOCK))](
        gate_up, out, width, BLOCK=BLOCK, PDL=pdl, num_warps=8, launch_pdl=pdl
    )


def reference_silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """In float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
