"""Between the fused qkv product and attention: bias, qk-norm, rotation, writing keys and values.

Bytes per token: the qkv row read, (heads + 2 * kv_heads) * head_dim values written (queries to
their buffer, the rest to the pool), a table row of head_dim float32. No other memory access. One
program per token and a few heads; a head's bits depend only on that head's values.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import cdiv, next_power_of_2

FP8_MAX = 448.0  # of e4m3
MAX_HEADS = 16  # heads per program


@triton.jit
def _normed(low, high, weight, half_dim, at_half, epsilon, HALF: tl.constexpr):
    mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF)
    scale = tl.rsqrt(mean + epsilon)[:, None]
    low_weight = tl.load(weight + half_dim, mask=at_half, other=0.0).to(tl.float32)
    high_weight = tl.load(weight + HALF + half_dim, mask=at_half, other=0.0).to(tl.float32)
    return low * scale * low_weight[None, :], high * scale * high_weight[None, :]


@triton.jit
def _size(x):
    """|x|, and infinity for NaN, which a maximum would ignore."""
    return tl.where(x == x, tl.abs(x), float("inf"))


@triton.jit(do_not_specialize=["layer"])
def _rope_write_kernel(
    qkv,
    bias,
    query_norm,
    key_norm,
    cos,
    sin,
    positions,
    slots,
    queries,
    values,
    scales,
    layer,
    epsilon,
    qkv_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    LAYERS: tl.constexpr,
    PAGE: tl.constexpr,
    PLANE: tl.constexpr,
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    FP8: tl.constexpr,
    FP8_MAX: tl.constexpr,
    PDL: tl.constexpr,
):
    ready(PDL)
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    half_dim = tl.arange(0, HALF_PAD)
    at_half = half_dim < HALF
    is_head = head < HEADS + 2 * KV_HEADS
    keep = is_head[:, None] & at_half[None, :]
    at = head[:, None] * HEAD_DIM + half_dim[None, :]
    source = qkv + token * qkv_stride
    low = tl.load(source + at, mask=keep, other=0.0).to(tl.float32)
    high = tl.load(source + at + HALF, mask=keep, other=0.0).to(tl.float32)
    if BIASED:
        low += tl.load(bias + at, mask=keep, other=0.0).to(tl.float32)
        high += tl.load(bias + at + HALF, mask=keep, other=0.0).to(tl.float32)
    is_query = (head < HEADS)[:, None]
    is_value = (head >= HEADS + KV_HEADS)[:, None]
    if NORMED:
        q_low, q_high = _normed(low, high, query_norm, half_dim, at_half, epsilon, HALF)
        k_low, k_high = _normed(low, high, key_norm, half_dim, at_half, epsilon, HALF)
        low = tl.where(is_value, low, tl.where(is_query, q_low, k_low))
        high = tl.where(is_value, high, tl.where(is_query, q_high, k_high))
    # A table row holds the same angles in both halves; the second half of sin is positive.
    row = tl.load(positions + token).to(tl.int64) * HEAD_DIM
    c = tl.load(cos + row + half_dim, mask=at_half, other=0.0)[None, :]
    s = tl.load(sin + row + HALF + half_dim, mask=at_half, other=0.0)[None, :]
    new_low = tl.where(is_value, low, low * c - high * s)
    new_high = tl.where(is_value, high, high * c + low * s)
    query_at = queries + token * (HEADS * HEAD_DIM) + at
    tl.store(query_at, new_low, mask=keep & is_query)
    tl.store(query_at + HALF, new_high, mask=keep & is_query)
    slot = tl.load(slots + token)
    if slot >= 0:
        page = (slot // PAGE).to(tl.int64)
        kv_head = head - HEADS  # values follow keys here, as in a page
        plane = (page * LAYERS + layer) * (2 * KV_HEADS) + kv_head
        at_slot = (plane * PLANE + (slot % PAGE) * HEAD_DIM)[:, None] + half_dim[None, :]
        to_high = HALF
        cached = keep & (kv_head >= 0)[:, None]
        if FP8:
            largest = tl.maximum(tl.max(_size(new_low), 1), tl.max(_size(new_high), 1))
            sound = largest < float("inf")
            scale = tl.where(sound, tl.maximum(largest, 1e-12) / FP8_MAX, float("nan"))
            at_scale = (plane * PLANE + PAGE * HEAD_DIM) // 4 + slot % PAGE
            tl.store(scales + at_scale, scale, mask=is_head & (kv_head >= 0))
            # Non-finite values make the scale NaN, but never a byte.
            new_low = tl.where(sound[:, None], new_low / scale[:, None], 0.0)
            new_high = tl.where(sound[:, None], new_high / scale[:, None], 0.0)
            turned = (plane * PLANE + slot % PAGE)[:, None] + half_dim[None, :] * PAGE
            at_slot = tl.where(is_value, turned, at_slot)
            to_high = tl.where(is_value, HALF * PAGE, HALF)
        tl.store(values + at_slot, new_low.to(values.dtype.element_ty), mask=cached)
        tl.store(values + at_slot + to_high, new_high.to(values.dtype.element_ty), mask=cached)


def rope_write(
    qkv: torch.Tensor,
    view: KVView,
    layer: int,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    queries: torch.Tensor,
    bias: torch.Tensor | None = None,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    pdl: int = 0,
) -> None:
    """qkv `[n, (heads + 2 kv_heads) * head_dim]` -> queries `[n, heads, head_dim]` dense, and keys
    and values to the pool at `slots` [n] int64 = page * page_tokens + place; -1 writes nothing.

    `positions` [n] integers; `cos` and `sin` `[positions, head_dim]` float32 as from `Rope.tables`
    (sin is negated in its first half). Order: bias, norm of queries and keys (both or neither),
    rotation by halves, rounding. An FP8 pool gets one scale per token and head: the maximum / 448,
    or NaN if a value is not finite.
    """
    n = len(qkv)
    heads, head_dim = queries.shape[1:]
    assert head_dim == view.head_dim
    assert qkv.shape[1] == (heads + 2 * view.kv_heads) * head_dim
    assert qkv.stride(1) == 1
    assert queries.is_contiguous()
    assert slots.dtype == torch.int64
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert (query_norm is None) == (key_norm is None)
    n_heads = heads + 2 * view.kv_heads
    block = min(MAX_HEADS, next_power_of_2(n_heads))
    launch(_rope_write_kernel, (n, cdiv(n_heads, block)))(
        qkv,
        qkv if bias is None else bias,
        qkv if query_norm is None else query_norm,
        qkv if key_norm is None else key_norm,
        cos,
        sin,
        positions,
        slots,
        queries,
        view.values,
        view.scales,
        layer,
        epsilon,
        qkv.stride(0),
        HEADS=heads,
        KV_HEADS=view.kv_heads,
        HEAD_DIM=head_dim,
        HALF_PAD=next_power_of_2(head_dim // 2),
        BLOCK_HEADS=block,
        LAYERS=view.layers,
        PAGE=view.page_tokens,
        PLANE=view.plane_values,
        BIASED=bias is not None,
        NORMED=query_norm is not None,
        FP8=view.has_scales,
        FP8_MAX=FP8_MAX,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )


def reference_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    heads: int,
    kv_heads: int,
    bias: torch.Tensor | None = None,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values `[n, heads, head_dim]` in float64, unrounded."""
    dim = cos.shape[1]
    x = qkv.double() if bias is None else qkv.double() + bias.double()
    parts = list(x.view(len(x), -1, dim).split([heads, kv_heads, kv_heads], dim=1))
    for i, norm in enumerate((query_norm, key_norm)):
        if norm is not None:
            mean = parts[i].square().mean(-1, keepdim=True)
            parts[i] = parts[i] * torch.rsqrt(mean + epsilon) * norm.double()
        c, s = cos[positions.long()].double()[:, None], sin[positions.long()].double()[:, None]
        parts[i] = parts[i] * c + torch.roll(parts[i], dim // 2, dims=-1) * s
    return parts[0], parts[1], parts[2]
