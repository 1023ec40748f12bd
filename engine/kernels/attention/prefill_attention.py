"""Causal attention of packed new tokens over their rows' pages (cached prefix and chunk alike).

Bytes: queries and answers once; a row's keys and values once for each query head and tile of
BLOCK_TOKENS queries, from the L2 cache except for the first. Operations: 4 * head_dim * keys per
query and head.

Ideas: FlashAttention-2 (Dao, 2023), with pages as key tiles; one tensor descriptor over the whole
pool copies a page's 64 keys to shared memory in the layout that wgmma reads.

    keys of a tile of queries      |...| page | page | page | page |       |   |
                                    edge of the window  whole        diagonal and the row's end

Only the edges are masked. Keys are processed page by page from the row's first, whatever the chunk:
a query's bits depend neither on where chunks begin nor on its neighbours.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.attention.prefill_overlapped import (
    BLOCK_TOKENS,
    can_overlap,
    launch_overlapped,
)
from twolane.engine.kernels.attention.prefill_plan import TILE_RECORD
from twolane.engine.kernels.launch import card_of, launch
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.kernels.pages.load_plane import load_plane, load_scales, load_transposed
from twolane.engine.kernels.sizes import next_power_of_2

# In FP8 pools, a weight of 1 with a scale of 1 becomes this. Scales are far below 1 and would
# underflow in float16; with this factor it still holds values of up to 28,000.
WEIGHT_ONE: tl.constexpr = tl.constexpr(1024.0)


@triton.jit
def _scores(
    queries, page, keys_end, row_position, values, descriptor, scales, layer, head, window,
    LAYERS: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, PLANE: tl.constexpr, MASKED: tl.constexpr, TENSOR_COPY: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """Scores `[BLOCK, PAGE]` of the page, whose first key has the position keys_end[0]."""
    plane = ((page * LAYERS + layer) * 2) * KV_HEADS + head
    keys = load_plane(
        values, descriptor, plane, 0, PAGE, PAGE, HEAD_DIM, DIM_PAD, PLANE, False, TENSOR_COPY
    )
    if FP8:
        keys = keys.to(queries.dtype)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if FP8:
        scores *= load_scales(scales, plane, 0, PAGE, PAGE, HEAD_DIM, PLANE)[None, :]
    if MASKED:
        position = keys_end + tl.arange(0, PAGE)
        keep = position[None, :] <= row_position[:, None]
        if window > 0:
            keep = keep & (position[None, :] > row_position[:, None] - window)
        scores = tl.where(keep, scores, float("-inf"))
    return scores


@triton.jit
def _weighed(
    weights, page, n_valid, values, descriptor, scales, layer, head, answer,
    LAYERS: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, PLANE: tl.constexpr, MASKED: tl.constexpr, TENSOR_COPY: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """`answer` plus weights @ the page's values, in FP8 pools times WEIGHT_ONE; values of slots
    from n_valid on count as 0."""
    plane = ((page * LAYERS + layer) * 2 + 1) * KV_HEADS + head
    if FP8:
        scale = load_scales(scales, plane, 0, n_valid, PAGE, HEAD_DIM, PLANE)
        weights *= (scale * WEIGHT_ONE)[None, :]
        if TENSOR_COPY:
            turned = descriptor.load([plane * (PLANE // PAGE), 0])
        else:
            turned = load_transposed(values, plane, PAGE, HEAD_DIM, DIM_PAD, PLANE)
        held = tl.trans(turned.to(tl.float16))
    else:
        held = load_plane(
            values, descriptor, plane, 0, n_valid,
            PAGE, HEAD_DIM, DIM_PAD, PLANE, MASKED, TENSOR_COPY,
        )  # fmt: skip
    return tl.dot(weights.to(held.dtype), held, answer, input_precision="ieee")


@triton.jit(do_not_specialize=["layer", "window", "table_stride"])
def _prefill_kernel(
    queries,
    out,
    values,
    descriptor,
    held_descriptor,
    scales,
    tables,
    tiles,
    layer,
    scale,
    window,
    query_stride,
    table_stride,
    LAYERS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PLANE: tl.constexpr,
    BLOCK: tl.constexpr,
    RECORD: tl.constexpr,
    WINDOWED: tl.constexpr,
    TENSOR_COPY: tl.constexpr,
    FP8: tl.constexpr,
    STAGES: tl.constexpr,
):
    query_head = tl.program_id(0)
    head = query_head // GROUP
    record = tiles + tl.program_id(1) * RECORD
    row = tl.load(record)
    first_token = tl.load(record + 1)
    end_token = tl.load(record + 2)
    first_position = tl.load(record + 3)
    table = tables + row * table_stride
    token = first_token + tl.arange(0, BLOCK)
    dim = tl.arange(0, DIM_PAD)
    mine = (token < end_token)[:, None] & (dim < HEAD_DIM)[None, :]
    q = tl.load(
        queries + token.to(tl.int64)[:, None] * query_stride + query_head * HEAD_DIM + dim[None, :],
        mask=mine,
        other=0.0,
    )
    if FP8:
        q = q.to(tl.float16)
    position = first_position + tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    answer = tl.zeros([BLOCK, DIM_PAD], tl.float32)
    keys_end = first_position + tl.minimum(BLOCK, end_token - first_token)
    begin = 0
    whole_begin = 0
    whole_end = (first_position + 1) // PAGE
    end = tl.cdiv(keys_end, PAGE)
    if WINDOWED:
        begin = tl.maximum(first_position - window + 1, 0) // PAGE
        whole_begin = tl.maximum(tl.cdiv(first_position + BLOCK - window, PAGE), begin)
        whole_begin = tl.minimum(whole_begin, whole_end)
        for i in tl.range(begin, whole_begin, num_stages=1):
            page = tl.load(table + i)
            s = _scores(
                q, page, i * PAGE, position, values, descriptor, scales, layer, head, window,
                LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, True, TENSOR_COPY, FP8,
            )  # fmt: skip
            higher = tl.maximum(best, tl.max(s, 1) * scale)
            level = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp2(s * scale - level[:, None])
            shrink = tl.exp2(best - level)
            total = total * shrink + tl.sum(weights, 1)
            answer = _weighed(
                weights, page, keys_end - i * PAGE, values, held_descriptor, scales, layer, head,
                answer * shrink[:, None],
                LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, False, TENSOR_COPY, FP8,
            )  # fmt: skip
            best = higher
    whole_end = tl.maximum(whole_begin, whole_end)
    # A page's id is loaded one iteration ahead, so that keys and values get all pipeline stages.
    page = tl.load(table + tl.minimum(whole_begin, end - 1))
    for i in tl.range(whole_begin, whole_end, num_stages=STAGES):
        next_page = tl.load(table + tl.minimum(i + 1, end - 1))
        s = _scores(
            q, page, 0, position, values, descriptor, scales, layer, head, window,
            LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, False, TENSOR_COPY, FP8,
        )  # fmt: skip
        higher = tl.maximum(best, tl.max(s, 1) * scale)
        weights = tl.exp2(s * scale - higher[:, None])
        shrink = tl.exp2(best - higher)
        total = total * shrink + tl.sum(weights, 1)
        answer = _weighed(
            weights, page, PAGE, values, held_descriptor, scales, layer, head,
            answer * shrink[:, None],
            LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, False, TENSOR_COPY, FP8,
        )  # fmt: skip
        best = higher
        page = next_page
    for i in tl.range(whole_end, end, num_stages=1):
        page = tl.load(table + i)
        s = _scores(
            q, page, i * PAGE, position, values, descriptor, scales, layer, head, window,
            LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, True, TENSOR_COPY, FP8,
        )  # fmt: skip
        higher = tl.maximum(best, tl.max(s, 1) * scale)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(s * scale - level[:, None])
        shrink = tl.exp2(best - level)
        total = total * shrink + tl.sum(weights, 1)
        answer = _weighed(
            weights, page, keys_end - i * PAGE, values, held_descriptor, scales, layer, head,
            answer * shrink[:, None],
            LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, True, TENSOR_COPY, FP8,
        )  # fmt: skip
        best = higher
    if FP8:
        total *= WEIGHT_ONE
    answer = answer / tl.where(total > 0, total, 1.0)[:, None]  # 0 in rows past the end
    place = token.to(tl.int64)[:, None] * (KV_HEADS * GROUP * HEAD_DIM) + query_head * HEAD_DIM
    tl.store(out + place + dim[None, :], answer, mask=mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """Build options of the kernel, and the tile size that its plan must use."""

    block_tokens: int
    warps: int
    stages: int  # pages in flight; pairs of them if `overlapped`
    tensor_copy: bool = True
    overlapped: bool = False  # uses the kernel of `prefill_hopper`


def config_for(view: KVView) -> PrefillConfig:
    """The best measured on an H200; something that fits if nothing was measured."""
    values = view.values
    if values.dtype == torch.float32:  # no tensor cores at this precision
        return PrefillConfig(block_tokens=16, warps=8, stages=1)
    card = card_of(values.device)
    if can_overlap(view) and card is not None and card.is_hopper:
        return PrefillConfig(block_tokens=BLOCK_TOKENS, warps=8, stages=2, overlapped=True)
    if view.head_dim > 128:
        return PrefillConfig(block_tokens=128, warps=8, stages=2)
    if view.has_scales:  # not measured: twice the queries for each dequantised page
        return PrefillConfig(block_tokens=128, warps=8, stages=3)
    return PrefillConfig(block_tokens=64, warps=4, stages=3)


def prefill_attention(
    queries: torch.Tensor,
    view: KVView,
    layer: int,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    *,
    out: torch.Tensor,
    scale: float,
    window: int = 0,
    config: PrefillConfig | None = None,
) -> None:
    """queries `[n, heads, head_dim]` of packed rows (tokens may be strided), out the same, dense.

    The keys and values of all n tokens are already in the pool. `tiles` is `plan_prefill`'s result
    for the same rows, window and `config_for(view).block_tokens`, on the device; `tables`
    [rows, any] int32. `scale` > 0 multiplies the scores. Query head h reads KV head h // group; a
    query sees keys up to its own position, with `window` only the last `window` of them.
    """
    config = config or config_for(view)
    heads, head_dim = queries.shape[1:]
    group = heads // view.kv_heads
    assert head_dim == view.head_dim
    assert heads == group * view.kv_heads
    assert queries.stride(2) == 1
    assert queries.stride(1) == head_dim
    assert out.is_contiguous()
    assert out.shape == queries.shape
    assert tables.dtype == tiles.dtype == torch.int32
    assert tables.stride(1) == 1
    assert tiles.is_contiguous()
    if config.overlapped:
        assert can_overlap(view)
        assert config.block_tokens == BLOCK_TOKENS
        launch_overlapped(
            queries, view, layer, tables, tiles,
            out=out, scale=scale / math.log(2), window=window, stages=config.stages,
        )  # fmt: skip
        return
    dim_pad = next_power_of_2(head_dim)
    tensor_copy = config.tensor_copy and view.has_descriptor and view.values.itemsize <= 2
    descriptor = view.descriptor(dim_pad) if tensor_copy else view.values
    held_descriptor = descriptor
    if tensor_copy and view.has_scales:
        held_descriptor = view.transposed_descriptor()
    launch(_prefill_kernel, (heads, len(tiles)))(
        queries,
        out,
        view.values,
        descriptor,
        held_descriptor,
        view.scales,
        tables,
        tiles,
        layer,
        scale / math.log(2),
        window,
        queries.stride(0),
        tables.stride(0),
        LAYERS=view.layers,
        KV_HEADS=view.kv_heads,
        GROUP=group,
        PAGE=view.page_tokens,
        HEAD_DIM=head_dim,
        DIM_PAD=dim_pad,
        PLANE=view.plane_values,
        BLOCK=config.block_tokens,
        RECORD=TILE_RECORD,
        WINDOWED=window > 0,
        TENSOR_COPY=tensor_copy,
        FP8=view.has_scales,
        STAGES=config.stages,
        num_warps=config.warps,
        num_stages=config.stages,
    )
