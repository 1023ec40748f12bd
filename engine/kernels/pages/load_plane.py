"""Loads one plane of the pool (see `kv_view`) inside a kernel."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl


@triton.jit
def load_plane(
    values,
    descriptor,
    plane,
    low,
    high,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PLANE: tl.constexpr,
    MASKED: tl.constexpr,
    TENSOR_COPY: tl.constexpr,
):
    """One plane `[PAGE, DIM_PAD]`; with MASKED, zeros outside of the slots low .. high - 1.

    Stale bytes may be NaN, and 0 * NaN would reach the row: so they are never read.
    """
    if TENSOR_COPY and not MASKED:
        tile = descriptor.load([plane * (PLANE // HEAD_DIM), 0])
    else:
        slot = tl.arange(0, PAGE)[:, None]
        dim = tl.arange(0, DIM_PAD)[None, :]
        at = values + plane.to(tl.int64) * PLANE + slot * HEAD_DIM + dim
        if MASKED:
            keep = (slot >= low) & (slot < high)
            if HEAD_DIM != DIM_PAD:
                keep = keep & (dim < HEAD_DIM)
            tile = tl.load(at, mask=keep, other=0.0)
        elif HEAD_DIM != DIM_PAD:
            tile = tl.load(at, mask=dim < HEAD_DIM, other=0.0)
        else:
            tile = tl.load(at)
    return tile


@triton.jit
def load_scales(
    scales, plane, low, high, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr, PLANE: tl.constexpr
):
    """The scales of one FP8 plane `[PAGE]`, zero outside of the slots low .. high - 1."""
    slot = tl.arange(0, PAGE)
    at = scales + (plane.to(tl.int64) * PLANE + PAGE * HEAD_DIM) // 4 + slot
    return tl.load(at, mask=(slot >= low) & (slot < high), other=0.0)


@triton.jit
def load_transposed(
    values,
    plane,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PLANE: tl.constexpr,
):
    """A plane of an FP8 pool's values `[DIM_PAD, PAGE]`; zero past HEAD_DIM."""
    dim = tl.arange(0, DIM_PAD)[:, None]
    at = values + plane.to(tl.int64) * PLANE + dim * PAGE + tl.arange(0, PAGE)[None, :]
    return tl.load(at, mask=dim < HEAD_DIM, other=0.0)
