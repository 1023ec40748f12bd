"""What decode attention may do while the launch before it still runs: ask for its first pages."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from twolane.engine.kernels.pages.kv_view import KVView

LINE_BYTES = 128  # of the second-level cache


def pages_ahead(view: KVView, wanted: int) -> int:
    """So many, or 0 where a plane's cache lines are no power of two, which a program could not ask
    for at once."""
    lines = view.page_tokens * view.head_dim * view.values.itemsize // LINE_BYTES
    return wanted if lines & (lines - 1) == 0 else 0


@triton.jit
def ask_ahead(
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
    """Have the first pages of this program's first item brought to the second-level cache.

    The plan is older than the launch before this one, and so are all keys but a row's newest: those
    are written in that cache, too.
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
