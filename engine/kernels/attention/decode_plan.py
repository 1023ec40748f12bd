"""Plans which program reads which pages in a decode step: cuts rows into items of equal cost.

    row 0   |-- 0 --|-- 1 --|-- 2 --|         an item: some consecutive pages of one row
    row 1   |-- 5 --|                         all KV heads of an item run in parallel
    row 2   |-- 3 --|-- 4 --|

Items of rows with more pages to read come first, and cards start programs about in the order of
items: those that start last, when others find nothing more to do, are short.

The plan is computed on the device. One launch per step serves every layer (of one window size), and
a CUDA graph can contain it, since it reads lengths from device memory and writes to fixed
addresses.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from twolane.engine.kernels.launch import launch
from twolane.engine.kernels.sizes import next_power_of_2

# int32s per item: row, first page index, end index, length, row's first item, row's items, page
RECORD = 8
_SEARCH_STEPS = 17  # pages of a row < 2 ** 17; times 2 ** 14 rows, which are sorted, fits an int32


@triton.jit
def _pages(lengths, row, n_rows, window, PAGE: tl.constexpr):
    """Of each row: its length, the first page that is read, and how many are."""
    length = tl.load(lengths + row, mask=row < n_rows, other=0)
    lowest = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    first = lowest // PAGE
    return length, first, tl.cdiv(length, PAGE) - first


@triton.jit(do_not_specialize=["n_rows", "window", "max_items", "table_stride"])
def _plan_kernel(
    lengths,
    tables,
    items,
    total,
    n_rows,
    window,
    max_items,
    table_stride,
    PAGE: tl.constexpr,
    FIXED: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    RECORD: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    _, _, pages = _pages(lengths, row, n_rows, window, PAGE)
    # Rows of most pages first, and in their order where these are equal.
    row = ROWS - 1 - tl.sort(pages * ROWS + (ROWS - 1 - row), descending=True) % ROWS
    length, first, pages = _pages(lengths, row, n_rows, window, PAGE)
    if FIXED > 0:
        each = tl.where(pages > 0, FIXED, FIXED)
    else:
        # The smallest item size, in pages, that gives at most max_items items.
        low = 1
        high = tl.maximum(tl.max(pages, 0), 1)
        for _ in range(STEPS):
            middle = (low + high) // 2
            fits = tl.sum(tl.cdiv(pages, middle), 0) <= max_items
            high = tl.where(fits, middle, high)
            low = tl.where(fits, low, tl.minimum(middle + 1, high))
        n = tl.maximum(tl.cdiv(pages, high), 1)
        each = tl.maximum(tl.cdiv(pages, n), 1)
    n = tl.cdiv(pages, each)
    start = tl.cumsum(n, 0) - n
    tl.store(total, tl.sum(n, 0))
    for j in range(tl.max(n, 0)):
        at = items + (start + j) * RECORD
        keep = (j < n) & (start + j < max_items)
        begin = first + j * each
        tl.store(at, row, mask=keep)
        tl.store(at + 1, begin, mask=keep)
        tl.store(at + 2, tl.minimum(begin + each, first + pages), mask=keep)
        tl.store(at + 3, length, mask=keep)
        tl.store(at + 4, start, mask=keep)
        tl.store(at + 5, n, mask=keep)
        page = tl.load(tables + row * table_stride + begin, mask=keep)
        tl.store(at + 6, page, mask=keep)


@dataclass(frozen=True, slots=True)
class Partials:
    """The answers of items, for one layer at a time, and their log-sum-exps. A launch reads only
    what it has written itself, so all plans of one stream may share them."""

    out: torch.Tensor  # [items, kv_heads, group, head_dim] float32
    lse: torch.Tensor  # [items, kv_heads, group] float32

    def __len__(self) -> int:
        return len(self.lse)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The device buffers of one plan, reused by every step of a bucket.

    `items` [max_items, 8] int32, `total` [1] int32: valid after `plan_decode` on the same stream.
    `counters` [rows * kv_heads] int32, zero between launches. The partials hold each item's answer
    for one layer at a time. `fixed_pages` 0: items are sized to fill the device.
    """

    items: torch.Tensor
    total: torch.Tensor
    counters: torch.Tensor
    partial_out: torch.Tensor  # [max_items, kv_heads, group, head_dim] float32
    partial_lse: torch.Tensor  # [max_items, kv_heads, group] float32
    fixed_pages: int

    @property
    def max_items(self) -> int:
        return len(self.items)

    @property
    def max_rows(self) -> int:
        return len(self.counters) // self.partial_lse.shape[1]


def items_for(rows: int, *, kv_heads: int, cores: int) -> int:
    """A good `max_items` for a bucket of `rows` on a device with so many SMs.

    A merge costs microseconds, so rows are split only to give every SM a program: few rows are cut
    into that many items; with enough rows, only one that is much longer than the rest is cut.
    """
    spread = max(1, cores // kv_heads)
    return spread if rows < spread else rows + spread


def allocate_plan(
    max_rows: int,
    *,
    max_items: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    device: torch.device | str,
    fixed_pages: int = 0,
    partials: Partials | None = None,
) -> DecodePlan:
    """Buffers for max_rows rows in at most max_items items, at least one per row. The partial
    answers are in `partials`, if given.

    With `fixed_pages` (exact mode) every item has that many pages (a row's last may have fewer),
    whatever the batch: max_items must then be at least pages in use / fixed_pages + max_rows, or
    tokens are lost.
    """
    assert max_items >= max_rows
    if partials is None:
        partials = allocate_partials(
            max_items, kv_heads=kv_heads, group=group, head_dim=head_dim, device=device
        )
    assert len(partials) >= max_items
    ints: dict[str, Any] = {"dtype": torch.int32, "device": device}
    return DecodePlan(
        items=torch.zeros(max_items, RECORD, **ints),
        total=torch.zeros(1, **ints),
        counters=torch.zeros(max_rows * kv_heads, **ints),
        partial_out=partials.out[:max_items],
        partial_lse=partials.lse[:max_items],
        fixed_pages=fixed_pages,
    )


def allocate_partials(
    max_items: int, *, kv_heads: int, group: int, head_dim: int, device: torch.device | str
) -> Partials:
    """Partial answers of up to max_items items."""
    assert max_items * kv_heads * group * head_dim < 2**31
    floats: dict[str, Any] = {"dtype": torch.float32, "device": device}
    return Partials(
        torch.zeros(max_items, kv_heads, group, head_dim, **floats),
        torch.zeros(max_items, kv_heads, group, **floats),
    )


def plan_decode(
    plan: DecodePlan,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    *,
    page_tokens: int,
    window: int = 0,
) -> None:
    """Fill `plan` for rows of `lengths` [rows] int32, on the device: the keys that a row sees, its
    newest token included; 0 for padding rows, which get no item. Moves a few KiB.

    `tables` [rows, any] int32, the rows' pages in order. `window` 0: a row sees all keys; otherwise
    its last `window`.
    """
    assert lengths.dtype == torch.int32
    assert len(lengths) <= plan.max_rows
    launch(_plan_kernel, (1,))(
        lengths,
        tables,
        plan.items,
        plan.total,
        len(lengths),
        window,
        plan.max_items,
        tables.stride(0),
        PAGE=page_tokens,
        FIXED=plan.fixed_pages,
        ROWS=next_power_of_2(max(len(lengths), 16)),
        STEPS=_SEARCH_STEPS,
        RECORD=RECORD,
        num_warps=4,
    )


def reference_plan(
    lengths: list[int], *, max_items: int, page_tokens: int, window: int = 0, fixed_pages: int = 0
) -> list[tuple[int, ...]]:
    """The records that `plan_decode` writes, in plain Python."""
    first = [max(n - window, 0) // page_tokens if window else 0 for n in lengths]
    pages = [-(-n // page_tokens) - f for n, f in zip(lengths, first, strict=True)]
    each = fixed_pages or 1
    while not fixed_pages and sum(-(-p // each) for p in pages) > max_items:
        each += 1
    records: list[tuple[int, ...]] = []
    for row, count in sorted(enumerate(pages), key=lambda row_count: -row_count[1]):
        size = fixed_pages or max(-(-count // max(-(-count // each), 1)), 1)
        n, start = -(-count // size), len(records)
        for j in range(n):
            begin = first[row] + j * size
            end = min(begin + size, first[row] + count)
            records.append((row, begin, end, lengths[row], start, n))
    return records
