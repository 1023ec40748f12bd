"""Converts pages to another layout, by a table of where each granule of a converted page is found.

    converted page | g0 | g1 | g2 | ...      granule g: unit[g] is the index into the row of slots
    row of slots   [ 7, 12, -1, ... ]        slot = page * slots_a_page + place, -1: absent
    its bytes      page * page_bytes + (base[g] + place * step[g]) * 16, counted from `address`

A pool of several parts, as ranks have, is treated as one: `base` may lead from the first part into
any other, whose pages are also `page_bytes` apart. Absent places become zeros.

Bytes: `convert_pages` reads and writes each byte once, 16 bytes per thread; `convert_pages_to_fp8`
reads each once and writes an FP8 byte per value, and a scale per token and head. 16 bytes of the
table per granule are read again for every page, from the cache.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.sizes import cdiv, next_power_of_2
from twolane.engine.model_files.fp8 import FP8, LARGEST, SMALLEST_SCALE

UNIT_BYTES = 16  # the unit of bases and steps
TILE_WORDS = 4096  # int64s per iteration: 32 KiB
MAX_SPAN = 512  # int64s of a granule copied at once
MAX_TOKENS = 64  # of a head, quantised in one iteration
_LARGEST: tl.constexpr = tl.constexpr(LARGEST)
_SMALLEST: tl.constexpr = tl.constexpr(SMALLEST_SCALE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionTable:
    """One row per granule, in the order of a converted page; on the device that runs the kernel.

    `base` int64; `unit`, `step` int32, all [granules].
    """

    base: torch.Tensor
    unit: torch.Tensor
    step: torch.Tensor
    granule_bytes: int
    units: int  # of a converted page
    slots_a_page: int  # of the pool

    def __post_init__(self) -> None:
        assert self.granule_bytes % UNIT_BYTES == 0
        assert self.base.dtype == torch.int64
        assert self.unit.dtype == self.step.dtype == torch.int32
        assert self.base.shape == self.unit.shape == self.step.shape

    @property
    def converted_bytes(self) -> int:
        """Bytes of a converted page, before it is quantised."""
        return self.granule_bytes * len(self.base)


@triton.jit
def _found(slots, base, unit, step, granule, keep, SLOTS_A_PAGE: tl.constexpr):
    """(whether it is present, page, offset in that page in units of 16 bytes)."""
    slot = tl.load(slots + tl.load(unit + granule, mask=keep, other=0), mask=keep, other=-1)
    is_there = slot >= 0
    slot = tl.maximum(slot, 0)
    place = (slot % SLOTS_A_PAGE).to(tl.int64)
    at = tl.load(base + granule, mask=keep, other=0)
    at += place * tl.load(step + granule, mask=keep, other=0)
    return is_there, (slot // SLOTS_A_PAGE).to(tl.int64), at


@triton.jit(do_not_specialize=["n_pages"])
def _convert_kernel(
    address,
    slots,
    base,
    unit,
    step,
    out,
    n_pages,
    units,
    granules,
    page_words,
    SLOTS_A_PAGE: tl.constexpr,
    WORDS: tl.constexpr,
    SPAN: tl.constexpr,
    PIECES: tl.constexpr,
):
    source = tl.multiple_of(address.to(tl.uint64).to(tl.pointer_type(tl.int64)), 16)
    CUT: tl.constexpr = WORDS // SPAN  # pieces per granule
    pieces = granules * CUT
    tiles = tl.cdiv(pieces, PIECES)
    word = tl.arange(0, SPAN)[None, :]
    for task in range(tl.program_id(0), n_pages * tiles, tl.num_programs(0)):
        nth = (task // tiles).to(tl.int64)
        piece = (task % tiles) * PIECES + tl.arange(0, PIECES)
        keep = piece < pieces
        row = slots + nth * units
        is_there, page, at = _found(row, base, unit, step, piece // CUT, keep, SLOTS_A_PAGE)
        first = page * page_words + at * 2 + (piece % CUT) * SPAN
        held = tl.load(source + (first[:, None] + word), mask=(keep & is_there)[:, None], other=0)
        to = (nth * pieces + piece) * SPAN
        tl.store(out + (to[:, None] + word), held, mask=keep[:, None])


@triton.jit
def _size(x):
    """|x|, and infinity for NaN, which a maximum would ignore."""
    return tl.where(x == x, tl.abs(x), float("inf"))


@triton.jit(do_not_specialize=["n_pages"])
def _convert_to_fp8_kernel(
    address,
    slots,
    base,
    unit,
    step,
    out,
    scales,
    n_pages,
    units,
    tiles,
    page_values,
    SLOTS_A_PAGE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    TOKENS: tl.constexpr,
    UNIT_VALUES: tl.constexpr,
    WIDE: tl.constexpr,
):
    source = tl.multiple_of(address.to(tl.uint64).to(tl.pointer_type(WIDE)), 16)
    PLANE: tl.constexpr = PAGE * (HEAD_DIM + 4)  # bytes of a converted plane
    CUT: tl.constexpr = PAGE // TOKENS  # tiles per plane
    token = tl.arange(0, TOKENS)
    dim = tl.arange(0, DIM_PAD)
    is_dim = (dim < HEAD_DIM)[None, :]
    for task in range(tl.program_id(0), n_pages * tiles, tl.num_programs(0)):
        nth = (task // tiles).to(tl.int64)
        tile = task % tiles
        is_there, page, at = _found(slots + nth * units, base, unit, step, tile, True, SLOTS_A_PAGE)
        first = page * page_values + at * UNIT_VALUES
        place = first + (token[:, None] * HEAD_DIM + dim[None, :])
        held = tl.load(source + place, mask=is_dim & is_there, other=0.0).to(tl.float32)
        largest = tl.max(_size(held), 1)
        sound = largest < float("inf")
        scale = tl.div_rn(tl.maximum(largest, _SMALLEST), tl.full([TOKENS], _LARGEST, tl.float32))
        # Non-finite values make the scale NaN, but never a byte.
        scale = tl.where(sound, scale, float("nan"))
        in_units = tl.div_rn(held, tl.broadcast_to(scale[:, None], [TOKENS, DIM_PAD]))
        small = tl.where(sound[:, None], in_units, 0.0).to(out.dtype.element_ty)
        plane = nth * (tiles // CUT) + tile // CUT
        from_token = (tile % CUT) * TOKENS
        to = out + plane * PLANE
        if (tile // CUT // KV_HEADS) % 2:
            turned = dim[None, :] * PAGE + (from_token + token)[:, None]
            tl.store(to + turned, small, mask=is_dim)
        else:
            straight = (from_token + token)[:, None] * HEAD_DIM + dim[None, :]
            tl.store(to + straight, small, mask=is_dim)
        at_scale = (plane * PLANE + PAGE * HEAD_DIM) // 4 + from_token
        tl.store(scales + at_scale + token, scale)


def convert_pages(
    address: int,
    slots: torch.Tensor,
    table: ConversionTable,
    *,
    page_bytes: int,
    out: torch.Tensor,
    programs: int = 64,
) -> None:
    """Fill `out` [n, table.converted_bytes] uint8 with the pages that `slots` [n, units] int32
    name.

    `address` is of page 0 of the pool's first part, 16-byte aligned, and `page_bytes` the distance
    of pages in each part. `programs` bounds how much of the device is used.
    """
    words = table.granule_bytes // 8
    span = min(MAX_SPAN, words & -words)
    pieces = TILE_WORDS // span
    _check(address, slots, table, page_bytes, out)
    assert out.shape[1] == table.converted_bytes
    if len(slots) == 0:
        return
    tasks = len(slots) * cdiv(table.converted_bytes // 8 // span, pieces)
    _convert_kernel[(min(programs, tasks),)](
        address,
        slots,
        table.base,
        table.unit,
        table.step,
        out.view(torch.int64),
        len(slots),
        table.units,
        len(table.base),
        page_bytes // 8,
        SLOTS_A_PAGE=table.slots_a_page,
        WORDS=words,
        SPAN=span,
        PIECES=pieces,
        num_warps=8,
    )


def convert_pages_to_fp8(
    address: int,
    slots: torch.Tensor,
    table: ConversionTable,
    *,
    page_bytes: int,
    out: torch.Tensor,
    dtype: torch.dtype,
    kv_heads: int,
    page_tokens: int,
    head_dim: int,
    programs: int = 64,
) -> None:
    """Convert pages of a float32, bfloat16 or float16 pool (`dtype`) to FP8 pages with scales: byte
    for byte what `twolane.engine.cpu.fp8_pages.quantise_tensors` computes from the unquantised
    pages.

    `table` has tiles of `fp8_tokens` tokens, in the order of the unquantised converted page;
    `page_tokens` is for a converted page, `kv_heads` for one of its ranks. `out` [n, bytes of a
    converted FP8 page] uint8.
    """
    tokens = table.granule_bytes // (head_dim * dtype.itemsize)
    n_tiles = len(table.base)
    _check(address, slots, table, page_bytes, out)
    assert tokens * head_dim * dtype.itemsize == table.granule_bytes
    assert tokens & (tokens - 1) == 0
    assert page_tokens % tokens == 0
    assert out.shape[1] == n_tiles * tokens * (head_dim + 4)
    if len(slots) == 0:
        return
    _convert_to_fp8_kernel[(min(programs, len(slots) * n_tiles),)](
        address,
        slots,
        table.base,
        table.unit,
        table.step,
        out.view(FP8),
        out.view(torch.float32),
        len(slots),
        table.units,
        n_tiles,
        page_bytes // dtype.itemsize,
        SLOTS_A_PAGE=table.slots_a_page,
        KV_HEADS=kv_heads,
        PAGE=page_tokens,
        HEAD_DIM=head_dim,
        DIM_PAD=next_power_of_2(head_dim),
        TOKENS=tokens,
        UNIT_VALUES=UNIT_BYTES // dtype.itemsize,
        WIDE=getattr(tl, str(dtype).removeprefix("torch.")),
        num_warps=8,
    )


def fp8_tokens(unit_tokens: int) -> int:
    """Tokens of a head per row of the table of `convert_pages_to_fp8`."""
    return min(MAX_TOKENS, unit_tokens & -unit_tokens)


def _check(
    address: int, slots: torch.Tensor, table: ConversionTable, page_bytes: int, out: torch.Tensor
) -> None:
    assert address % 16 == 0
    assert page_bytes % 128 == 0
    assert out.dtype == torch.uint8
    assert out.is_contiguous()
    assert slots.dtype == torch.int32
    assert slots.is_contiguous()
    assert slots.shape == (len(out), table.units)
