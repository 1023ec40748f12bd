"""Dequantises one layer of some rows' FP8 pages, in the order of the rows.

    pool   page tables[r, i], layer l  ->  scratch   page r * pages_a_row + i, its only layer

Bytes: each visible key and value read once as FP8, with its scale, and written once unquantised. A
chunk's attention reads every key many times, and can multiply unquantised pages directly.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.pages.kv_view import KVView
from twolane.engine.kernels.pages.load_plane import load_plane, load_scales, load_transposed
from twolane.engine.kernels.sizes import next_power_of_2


# Lengths follow those of the decode rows: any multiple of 4 bytes, so one variant must serve all.
@triton.jit(
    do_not_specialize=["layer", "table_stride", "pages_a_row"],
    do_not_specialize_on_alignment=["lengths"],
)
def _dequantise_kernel(
    values,
    scales,
    tables,
    lengths,
    out,
    layer,
    table_stride,
    pages_a_row,
    LAYERS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PLANE: tl.constexpr,
):
    nth = tl.program_id(0)
    kind = tl.program_id(1)  # keys of each head, then values of each
    row = nth // pages_a_row
    i = nth % pages_a_row
    n_valid = tl.load(lengths + row) - i * PAGE
    if n_valid > 0:
        page = tl.load(tables + row * table_stride + i)
        plane = (page * LAYERS + layer) * (2 * KV_HEADS) + kind
        scale = load_scales(scales, plane, 0, n_valid, PAGE, HEAD_DIM, PLANE)
        if kind < KV_HEADS:
            tile = load_plane(
                values, values, plane, 0, PAGE,
                PAGE, HEAD_DIM, DIM_PAD, PLANE, HEAD_DIM != DIM_PAD, False,
            )  # fmt: skip
            wide = tile.to(tl.float32) * scale[:, None]
        else:
            turned = load_transposed(values, plane, PAGE, HEAD_DIM, DIM_PAD, PLANE)
            wide = tl.trans(turned.to(tl.float32) * scale[None, :])
        slot = tl.arange(0, PAGE)[:, None]
        dim = tl.arange(0, DIM_PAD)[None, :]
        target = out + (nth * (2 * KV_HEADS) + kind).to(tl.int64) * (PAGE * HEAD_DIM)
        held = wide.to(out.dtype.element_ty)
        tl.store(target + slot * HEAD_DIM + dim, held, mask=dim < HEAD_DIM)


def dequantise_pages(
    view: KVView, layer: int, tables: torch.Tensor, lengths: torch.Tensor, *, out: KVView
) -> None:
    """Dequantise the pages in `tables` [rows, any] int32 of rows of `lengths` [rows] int32 into the
    one layer of `out`, whose pages are divided evenly among the rows. Slots past a row's end become
    0 in its last page; later pages are not written."""
    rows = len(lengths)
    assert view.has_scales
    assert not out.has_scales
    assert out.layers == 1
    assert out.n_pages % rows == 0
    assert (out.kv_heads, out.head_dim, out.page_tokens) == (
        view.kv_heads, view.head_dim, view.page_tokens,
    )  # fmt: skip
    assert tables.dtype == lengths.dtype == torch.int32
    assert tables.stride(1) == 1
    launch(_dequantise_kernel, (out.n_pages, 2 * view.kv_heads))(
        view.values,
        view.scales,
        tables,
        lengths,
        out.values,
        layer,
        tables.stride(0),
        out.n_pages // rows,
        LAYERS=view.layers,
        KV_HEADS=view.kv_heads,
        PAGE=view.page_tokens,
        HEAD_DIM=view.head_dim,
        DIM_PAD=next_power_of_2(view.head_dim),
        PLANE=view.plane_values,
        num_warps=4,
    )
