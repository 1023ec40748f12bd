"""Prefetch of decode attention's first pages, while the previous launch still runs."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from twolane.engine.kernels.pages.kv_view import KVView

LINE_BYTES = 128  # of the L2 cache


def pages_ahead(view: KVView, wanted: int) -> int:
    """How many pages to prefetch: `wanted`, or 0 if the cache lines of a plane are not a power of
    two, which one program could not prefetch at once."""
    lines = view.page_tokens * view.head_dim * view.values.itemsize // LINE_BYTES
    return wanted if lines & (lines - 1) == 0 else 0


@triton.jit
def prefetch_pages(
    values,
    tables,
    items,
    n_items,
    layer,
    head,
    max_items,
    table_stride,
    LAYERS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PLANE: tl.constexpr,
    RECORD: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Prefetch the first pages of this program's first item into the L2 cache.

    The plan is older than the previous launch, and so are all keys except each row's newest: that
    launch writes those through the same cache.
    """
    line: tl.constexpr = 128 // (values.dtype.element_ty.primitive_bitwidth // 8)
    place = tl.arange(0, PAGE * HEAD_DIM // line) * line
    item = tl.program_id(1)
    record = items + tl.minimum(item, max_items - 1) * RECORD
    table = tables + tl.load(record) * table_stride
    begin = tl.load(record + 1)
    end = tl.load(record + 2)
    if item < tl.load(n_items):
        for i in tl.static_range(AHEAD):
            page = tl.load(table + tl.minimum(begin + i, end - 1))
            plane = ((page * LAYERS + layer) * 2) * KV_HEADS + head
            for kind in tl.static_range(2):
                at = values + (plane + kind * KV_HEADS).to(tl.int64) * PLANE + place
                tl.inline_asm_elementwise(
                    "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at],
                    dtype=tl.int32, is_pure=False, pack=1,
                )  # fmt: skip
