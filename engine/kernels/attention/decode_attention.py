"""Attention of one new token per row over its pages: split over keys, queries of a KV head packed.

Bytes: each visible key and value once (2 * head_dim * itemsize per token and KV head); queries and
answers; for rows of several items, partial answers in float32, written once and read once.

Ideas: flash-decoding (Dao et al., 2023) for the split; FlashInfer (Ye et al., 2025) for planned
items of equal cost; Stream-K (Osama et al., 2023) for merging in the last of a row's programs,
which saves a second launch. The merge adds in the order of the items, whichever program is last.

A group's queries are padded to 16 rows, the minimum for the tensor cores. The transposed product,
with keys as rows, could use wgmma, but was no faster (it is memory-bound), and Triton 3.6 compiles
it to reads outside of shared memory if a masked page follows the loop. FP8 pools, which are
instruction-bound, still use it: see `decode_fp8`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import math

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.attention.decode_ahead import pages_ahead, prefetch_pages
from twolane.engine.kernels.attention.decode_config import DecodeAttentionConfig, config_for
from twolane.engine.kernels.attention.decode_fp8 import launch_fp8
from twolane.engine.kernels.attention.decode_merge import merge_items
from twolane.engine.kernels.attention.decode_plan import RECORD, DecodePlan
from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.kernels.pages.load_plane import load_plane
from twolane.engine.kernels.pdl import ready
from twolane.engine.kernels.sizes import next_power_of_2


@triton.jit
def _attend(
    page,
    low,
    high,
    queries,
    best,
    total,
    answer,
    values,
    descriptor,
    layer,
    head,
    scale,
    LAYERS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PLANE: tl.constexpr,
    MASKED: tl.constexpr,
    TENSOR_COPY: tl.constexpr,
):
    """Process the slots low .. high - 1 of one page. best, total: [G]; answer: [G, DIM_PAD]."""
    plane = ((page * LAYERS + layer) * 2) * KV_HEADS + head
    keys = load_plane(
        values, descriptor, plane, low, high,
        PAGE, HEAD_DIM, DIM_PAD, PLANE, MASKED, TENSOR_COPY,
    )  # fmt: skip
    held = load_plane(
        values, descriptor, plane + KV_HEADS, low, high,
        PAGE, HEAD_DIM, DIM_PAD, PLANE, MASKED, TENSOR_COPY,
    )  # fmt: skip
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if MASKED:
        slot = tl.arange(0, PAGE)
        keep = (slot >= low) & (slot < high)
        scores = tl.where(keep[None, :], scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, 1)
    answer = answer * shrink[:, None]
    weights = weights.to(held.dtype)
    answer = tl.dot(weights, held, answer, input_precision="ieee")
    return higher, total, answer


@triton.jit(do_not_specialize=["layer", "window", "max_items", "table_stride"])
def _decode_kernel(
    queries,
    out,
    values,
    descriptor,
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
    heads = head * GROUP + query
    mine = (query < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
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
                queries + row * query_stride + heads[:, None] * HEAD_DIM + dim[None, :],
                mask=mine,
                other=0.0,
            )
            best = tl.full([GROUP_PAD], float("-inf"), tl.float32)
            total = tl.zeros([GROUP_PAD], tl.float32)
            answer = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
            # Pages begin .. end - 1: perhaps one cut by the window, whole ones, perhaps a partial.
            whole_begin = begin
            whole_end = tl.minimum(end, length // PAGE)
            if WINDOWED:
                lowest = tl.maximum(length - window, 0)
                if (lowest > begin * PAGE) & (begin < whole_end):
                    best, total, answer = _attend(
                        page, lowest - begin * PAGE, PAGE,
                        q, best, total, answer, values, descriptor, layer, head, scale,
                        LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, True, TENSOR_COPY,
                    )  # fmt: skip
                    whole_begin = begin + 1
                    page = tl.load(table + tl.minimum(whole_begin, end - 1))
            # The next page's id is loaded one iteration ahead: a load that depends on another in
            # the same iteration would use up pipeline stages.
            for i in tl.range(whole_begin, whole_end, num_stages=STAGES):
                next_page = tl.load(table + tl.minimum(i + 1, end - 1))
                best, total, answer = _attend(
                    page, 0, PAGE,
                    q, best, total, answer, values, descriptor, layer, head, scale,
                    LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, False, TENSOR_COPY,
                )  # fmt: skip
                page = next_page
            if whole_end < end:
                low = 0
                if WINDOWED:
                    low = tl.maximum(tl.maximum(length - window, 0) - whole_end * PAGE, 0)
                best, total, answer = _attend(
                    page, low, length - whole_end * PAGE,
                    q, best, total, answer, values, descriptor, layer, head, scale,
                    LAYERS, KV_HEADS, PAGE, HEAD_DIM, DIM_PAD, PLANE, True, TENSOR_COPY,
                )  # fmt: skip
            answer = answer / total[:, None]
            place = heads[:, None] * HEAD_DIM + dim[None, :]
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


def decode_attention(
    queries: torch.Tensor,
    view: KVView,
    layer: int,
    tables: torch.Tensor,
    plan: DecodePlan,
    *,
    out: torch.Tensor,
    scale: float,
    window: int = 0,
    programs: int = 0,
    config: DecodeAttentionConfig | None = None,
    pdl: int = 0,
) -> None:
    """queries `[rows, heads, head_dim]` (rows may be strided), out `[rows, heads, head_dim]` dense.

    `tables` [rows, any] int32: the pages of each row in order; entries past a row's length are not
    read. `plan` was filled by `plan_decode` for the same lengths and window. Rows of length 0 are
    not written. `scale` multiplies the scores. `programs` 0: one per item of the plan's capacity;
    fewer programs loop over the items. Query head h reads KV head h // group. With `pdl`, tables
    and plan must be older than the previous launch.

    Asserted: shapes, dense heads, int32 tables, a page_tokens that the products support.
    """
    config = config or config_for(view)
    rows, heads, head_dim = queries.shape
    group = heads // view.kv_heads
    assert head_dim == view.head_dim
    assert heads == group * view.kv_heads
    assert queries.stride(2) == 1
    assert queries.stride(1) == head_dim
    assert out.is_contiguous()
    assert out.shape == queries.shape
    assert tables.dtype == torch.int32
    assert tables.stride(1) == 1
    assert len(tables) >= rows
    dim_pad = next_power_of_2(head_dim)
    if view.has_scales:
        launch_fp8(
            queries, view, layer, tables, plan,
            out=out, scale=scale / math.log(2), window=window, programs=programs, config=config,
            pdl=pdl,
        )  # fmt: skip
        return
    tensor_copy = config.tensor_copy and view.has_descriptor and view.values.itemsize <= 2
    descriptor = view.descriptor(dim_pad) if tensor_copy else view.values
    launch(_decode_kernel, (view.kv_heads, programs or plan.max_items))(
        queries,
        out,
        view.values,
        descriptor,
        tables,
        plan.items,
        plan.total,
        plan.counters,
        plan.partial_out,
        plan.partial_lse,
        layer,
        scale / math.log(2),
        window,
        plan.max_items,
        queries.stride(0),
        tables.stride(0),
        LAYERS=view.layers,
        KV_HEADS=view.kv_heads,
        GROUP=group,
        GROUP_PAD=max(16, next_power_of_2(group)),
        MERGE_PAD=next_power_of_2(group),
        PAGE=view.page_tokens,
        HEAD_DIM=head_dim,
        DIM_PAD=dim_pad,
        PLANE=view.plane_values,
        AT_ONCE=max(1, config.merge_rows // next_power_of_2(group)),
        RECORD=RECORD,
        WINDOWED=window > 0,
        TENSOR_COPY=tensor_copy,
        STAGES=config.stages,
        AHEAD=pages_ahead(view, config.ahead),
        PDL=pdl,
        num_warps=config.warps,
        num_stages=config.stages,
        launch_pdl=pdl,
    )
