"""Decode attention over an FP8 pool, with transposed products: keys are the rows of both.

    scores  [64 keys, 8]      = keys    [64 keys, head_dim]  @ queries [head_dim, 8]
    answers [head_dim, 8]    += values  [head_dim, 64 keys]  @ weights [64 keys, 8]

Bytes: each visible key and value once, with a float32 scale per token (head_dim + 4 bytes each).

An FP8 pool halves the bytes, so the instruction budget of a page halves as well: for 16 KiB of keys
and values an SM has some 850 clocks. With 16 padded query rows as rows of the product, the warps
convert keys element by element (load, convert, pack), some 2,100 instructions per page. Here wgmma
reads keys and values directly from where the tensor memory accelerator put them, without
per-element instructions: some 1,300 per page, and programs small enough that four fit on an SM.
This is why the values of an FP8 pool are stored transposed (see `kv_view`). On an H200, 64 rows of
4,096 tokens of Llama-3.1-8B take 134 us, 92 % of the read rate; 167 us through float16; 245 us in
16 bits.

Queries and weights are split into two FP8 parts, the second being the rounding error of the first,
in separate columns (wgmma needs at least 16): about the precision of one bfloat16. A page's weights
are relative to its own maximum, so that an attention sink in another page does not underflow them
in FP8. Pages are summed in float32 outside the tensor cores, whose FP8 accumulation keeps fewer
bits. A value's scale is multiplied into its weight. Keys are masked in every page, which costs a
few instructions and saves a second copy of the loop body.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.attention.decode_ahead import pages_ahead, prefetch_pages
from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig, Fp8Products
from twolane.engine.kernels.attention.decode_merge import merge_items
from twolane.engine.kernels.attention.decode_plan import RECORD, DecodePlan
from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.kernels.pages.load_plane import load_plane, load_scales, load_transposed
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import next_power_of_2

LARGEST: tl.constexpr = tl.constexpr(448.0)  # of e4m3
WEIGHT_ONE: tl.constexpr = tl.constexpr(256.0)  # a weight of 1 in FP8
LEAST_SCALE: tl.constexpr = tl.constexpr(2.0**-60)  # keeps sums of weights within float32
REST_ONE: tl.constexpr = tl.constexpr(16.0)  # 1 in the second part, at most 1/28 of 448
MERGE_ROWS = 32  # partial answers merged at a time: more need the registers of a fourth program


@triton.jit
def _parts(x, DTYPE: tl.constexpr, HALVES: tl.constexpr):
    """x `[n, G]` as the right operand of a product: float16, or `[n, 2 * G]` in FP8: the nearest
    value, then REST_ONE times the rounding error, so that small errors are representable."""
    if HALVES:
        parts = x.to(tl.float16)
    else:
        # Round to FP8's three mantissa bits by integer operations: CUDA 12.8's assembler reads
        # registers before they are set if a new FP8 number is converted back at once.
        nearest = (x.to(tl.int32, bitcast=True) + 0x80000) & -0x100000
        nearest = nearest.to(tl.float32, bitcast=True)
        high = nearest.to(DTYPE)
        low = ((x - nearest) * REST_ONE).to(DTYPE)
        both = tl.permute(tl.join(high, low), (0, 2, 1))
        parts = tl.reshape(both, (x.shape[0], 2 * x.shape[1]))
    return parts


@triton.jit
def _product(left, parts, HALVES: tl.constexpr):
    """left @ x in float32, given the parts of x."""
    if HALVES:
        out = tl.dot(left.to(tl.float16), parts, input_precision="ieee")
    else:
        both = tl.dot(left, parts)
        one = tl.where(tl.arange(0, 2) == 0, 1.0, 1.0 / REST_ONE)
        both = tl.reshape(both, (both.shape[0], 2, both.shape[1] // 2))
        out = tl.sum(both * one[None, :, None], 1)
    return out


@triton.jit(do_not_specialize=["layer", "window", "max_items", "table_stride"])
def _decode_fp8_kernel(
    queries,
    out,
    values,
    scales,
    key_descriptor,
    value_descriptor,
    scale_descriptor,
    tables,
    items,
    n_items,
    counters,
    partial_out,
    partial_lse,
    layer,
    scale,
    window,
    max_items,
    query_stride,
    table_stride,
    LAYERS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    MERGE_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PLANE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    RECORD: tl.constexpr,
    WINDOWED: tl.constexpr,
    TENSOR_COPY: tl.constexpr,
    HALVES: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    head = tl.program_id(0)
    if PDL and AHEAD > 0:
        prefetch_pages(
            values, tables, items, n_items, layer, head, max_items, table_stride,
            LAYERS, KV_HEADS, PAGE, HEAD_DIM, PLANE, RECORD, AHEAD,
        )  # fmt: skip
    ready(PDL)
    query = tl.arange(0, GROUP_PAD)
    dim = tl.arange(0, DIM_PAD)
    slot = tl.arange(0, PAGE)
    heads = head * GROUP + query
    mine = (dim < HEAD_DIM)[:, None] & (query < GROUP)[None, :]
    DTYPE: tl.constexpr = values.dtype.element_ty
    for item in range(tl.program_id(1), max_items, tl.num_programs(1)):
        # All these loads are issued together; reading a record past the last is harmless.
        total_items = tl.load(n_items)
        record = items + item * RECORD
        row = tl.load(record)
        begin = tl.load(record + 1)
        end = tl.load(record + 2)
        length = tl.load(record + 3)
        first_item = tl.load(record + 4)
        row_items = tl.load(record + 5)
        page = tl.load(record + 6)
        if item < total_items:
            table = tables + row * table_stride
            q = tl.load(
                queries + row * query_stride + heads[None, :] * HEAD_DIM + dim[:, None],
                mask=mine,
                other=0.0,
            ).to(tl.float32)
            unit = tl.maximum(tl.max(tl.abs(q), 0), 1e-30) / LARGEST
            q = _parts(q / unit[None, :], DTYPE, HALVES)
            unit = unit * scale
            best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
            totals = tl.zeros([PAGE, GROUP_PAD], tl.float32)  # summed at the end
            answer = tl.zeros([DIM_PAD, GROUP_PAD], tl.float32)
            lowest = 0
            if WINDOWED:
                lowest = tl.maximum(length - window, 0)
            # The next page's id is loaded one iteration ahead: a load that depends on another in
            # the same iteration would use up pipeline stages.
            for i in tl.range(begin, end, num_stages=STAGES):
                next_page = tl.load(table + tl.minimum(i + 1, end - 1))
                plane = ((page * LAYERS + layer) * 2) * KV_HEADS + head
                if TENSOR_COPY:
                    keys = key_descriptor.load([plane * (PLANE // HEAD_DIM), 0])
                    held = value_descriptor.load([(plane + KV_HEADS) * (PLANE // PAGE), 0])
                    at = plane * (PLANE // (4 * PAGE)) + HEAD_DIM // 4
                    step = KV_HEADS * (PLANE // (4 * PAGE))
                    key_scales = scale_descriptor.load([at, 0]).reshape(PAGE)
                    value_scales = scale_descriptor.load([at + step, 0]).reshape(PAGE)
                else:
                    keys = load_plane(
                        values, key_descriptor, plane, 0, PAGE,
                        PAGE, HEAD_DIM, DIM_PAD, PLANE, HEAD_DIM != DIM_PAD, False,
                    )  # fmt: skip
                    held = load_transposed(values, plane + KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE)
                    key_scales = load_scales(scales, plane, 0, PAGE, PAGE, HEAD_DIM, PLANE)
                    value_scales = load_scales(
                        scales, plane + KV_HEADS, 0, PAGE, PAGE, HEAD_DIM, PLANE
                    )
                keep = slot < length - i * PAGE
                if WINDOWED:
                    keep = keep & (slot >= lowest - i * PAGE)
                value_scales = tl.where(keep, value_scales, 1.0)
                # The logarithm of a scale to within 0.09, from its bits: enough to shift weights
                # so that none, times its scale, is much above WEIGHT_ONE.
                level = tl.maximum(value_scales, LEAST_SCALE).to(tl.int32, bitcast=True)
                level = level.to(tl.float32) * 2**-23 - 127.0
                scores = _product(keys, q, HALVES)
                scores = scores * (key_scales[:, None] * unit[None, :])
                scores = tl.where(keep[:, None], scores, float("-inf"))
                highest = tl.max(scores + level[:, None], 0)
                weights = tl.exp2(scores - highest[None, :])
                higher = tl.maximum(best, highest)
                shrink = tl.exp2(best - higher)
                grow = tl.exp2(highest - higher)
                totals = totals * shrink[None, :] + weights * grow[None, :]
                w = _parts(weights * (value_scales * WEIGHT_ONE)[:, None], DTYPE, HALVES)
                added = _product(held, w, HALVES)
                answer = answer * shrink[None, :] + added * (grow / WEIGHT_ONE)[None, :]
                best = higher
                page = next_page
            total = tl.sum(totals, 0)
            answer = answer / total[None, :]
            place = heads[None, :] * HEAD_DIM + dim[:, None]
            row_out = out + row * (KV_HEADS * GROUP * HEAD_DIM)
            if row_items == 1:
                tl.store(row_out + place, answer, mask=mine)
            else:
                item_heads = item * (KV_HEADS * GROUP)
                tl.store(partial_out + item_heads * HEAD_DIM + place, answer, mask=mine)
                lse = best + tl.log2(total)
                tl.store(partial_lse + item_heads + heads, lse, mask=query < GROUP)
                # Every thread's stores, then the release; the acquire, then every thread's loads.
                tl.debug_barrier()
                counter = counters + row * KV_HEADS + head
                if tl.atomic_add(counter, 1, sem="acq_rel") == row_items - 1:
                    tl.debug_barrier()
                    merge_items(
                        partial_out, partial_lse, row_out, first_item, row_items, head,
                        KV_HEADS, GROUP, MERGE_PAD, HEAD_DIM, DIM_PAD, AT_ONCE,
                    )  # fmt: skip
                    tl.store(counter, 0)


def launch_fp8(
    queries: torch.Tensor,
    view: KVView,
    layer: int,
    tables: torch.Tensor,
    plan: DecodePlan,
    *,
    out: torch.Tensor,
    scale: float,
    window: int,
    programs: int,
    config: DecodeAttentionConfig,
    pdl: int,
) -> None:
    """Like `decode_attention`, which checks the arguments; `scale` is for scores in base 2."""
    _, heads, head_dim = queries.shape
    group = heads // view.kv_heads
    halves = config.products is Fp8Products.HALVES
    # wgmma needs at least 16 columns, which the two FP8 parts of 8 queries fill.
    group_pad = max(16 if halves else 8, next_power_of_2(group))
    tensor_copy = config.tensor_copy and view.has_descriptor
    dim_pad = next_power_of_2(head_dim)
    values = view.values
    launch(_decode_fp8_kernel, (view.kv_heads, programs or plan.max_items))(
        queries,
        out,
        values,
        view.scales,
        view.descriptor(dim_pad) if tensor_copy else values,
        view.transposed_descriptor() if tensor_copy else values,
        view.scales_descriptor() if tensor_copy else values,
        tables,
        plan.items,
        plan.total,
        plan.counters,
        plan.partial_out,
        plan.partial_lse,
        layer,
        scale,
        window,
        plan.max_items,
        queries.stride(0),
        tables.stride(0),
        LAYERS=view.layers,
        KV_HEADS=view.kv_heads,
        GROUP=group,
        GROUP_PAD=group_pad,
        MERGE_PAD=next_power_of_2(group),
        PAGE=view.page_tokens,
        HEAD_DIM=head_dim,
        DIM_PAD=dim_pad,
        PLANE=view.plane_values,
        AT_ONCE=max(1, MERGE_ROWS // next_power_of_2(group)),
        RECORD=RECORD,
        WINDOWED=window > 0,
        TENSOR_COPY=tensor_copy,
        HALVES=halves,
        STAGES=config.stages,
        AHEAD=pages_ahead(view, config.ahead),
        PDL=pdl,
        num_warps=config.warps,
        num_stages=config.stages,
        launch_pdl=pdl,
    )
