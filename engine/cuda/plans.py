"""Buckets of decode rows and of prompts, and the split-key plans of the former."""

from __future__ import annotations

from bisect import bisect_left

import torch

from twolane.engine.kernels.attention.decode_plan import (
    DecodePlan,
    Partials,
    allocate_partials,
    allocate_plan,
    items_for,
)
from twolane.engine.kernels.launch import card_of
from twolane.engine.model_files.architecture import Architecture

# Dense where padding costs most; a bucket is at most a quarter too large.
BUCKETS: tuple[int, ...] = (
    *range(1, 17), *range(20, 33, 4), *range(40, 65, 8), *range(80, 161, 16), *range(192, 257, 16),
    *range(288, 513, 32), *range(640, 1025, 128),
)  # fmt: skip
MAX_ROWS = BUCKETS[-1]  # per pass
STEP_ROWS = 4 * MAX_ROWS  # per step, in as many passes as needed
# Tokens of passes that have prompts only and run as graphs. To launch their kernels one by one, the
# host takes 12 to 34 ms, longer than the card takes for 512 tokens, and keeps the worker's event
# loop from the interpreter meanwhile. From 512 on by the rows of a product's tile.
PROMPT_BUCKETS: tuple[int, ...] = (16, 32, 64, 128, 192, 256, 320, 384, *range(512, 2049, 128))
PROMPTS = 4  # most prompts in such a pass
_PADDED_ANYWAY = 512  # exact mode's products pad as many tokens to a power of two, graph or not
EXACT_ITEM_TOKENS = 1024  # keys per item in exact mode, whatever the batch


def bucket_for(rows: int) -> int:
    """The smallest bucket for that many rows, at most MAX_ROWS."""
    return BUCKETS[bisect_left(BUCKETS, rows)]


def prompt_bucket_for(tokens: int, most: int, *, exact: bool) -> int | None:
    """The smallest bucket for that many tokens; None if it is larger than `most`, or there is
    none. In exact mode only powers of two, as tiles of other heights may not be allowed; above
    _PADDED_ANYWAY only if an eighth is padding at most."""
    for size in PROMPT_BUCKETS:
        if size >= tokens and not (exact and size & (size - 1)):
            pads_much = exact and size > _PADDED_ANYWAY and 8 * tokens < 7 * size
            return None if size > most or pads_much else size
    return None


class DecodePlans:
    """One plan per bucket and window, allocated on first use and kept. They share the memory of
    partial answers, which in exact mode is as large as the longest context of all rows: so all
    plans must be used on one stream."""

    def __init__(
        self,
        arch: Architecture,
        *,
        page_tokens: int,
        table_pages: int,
        exact: bool,
        device: torch.device,
    ) -> None:
        self._arch = arch
        self._page_tokens = page_tokens
        self._table_pages = table_pages
        self._device = device
        self._plans: dict[tuple[int, int], DecodePlan] = {}
        self._partials: Partials | None = None  # of the largest plan so far
        card = card_of(device)
        self._cores = 1 if card is None else card.cores
        self._fixed_pages = max(1, EXACT_ITEM_TOKENS // page_tokens) if exact else 0

    def programs(self, rows: int) -> int:
        """Programs a KV head; 0: one for each item of the plan. Exact mode has an item for every
        possible EXACT_ITEM_TOKENS of each row, most of them unused: few programs loop over them,
        two for each row, and as many as the card holds at once."""
        if not self._fixed_pages:
            return 0
        at_once = -(-2 * self._cores // self._arch.kv_heads)
        return min(max(2 * bucket_for(rows), at_once), self._items(rows))

    def plan(self, rows: int, window: int) -> DecodePlan:
        bucket = bucket_for(rows)
        found = self._plans.get((bucket, window))
        if found is None:
            arch, max_items = self._arch, self._items(bucket)
            found = self._plans[bucket, window] = allocate_plan(
                bucket,
                max_items=max_items,
                kv_heads=arch.kv_heads,
                group=arch.group,
                head_dim=arch.head_dim,
                device=self._device,
                fixed_pages=self._fixed_pages,
                partials=self._partials_for(max_items),
            )
        return found

    def _partials_for(self, max_items: int) -> Partials:
        """Enough for that many items. Graphs keep the addresses of smaller ones, and their plans
        the memory."""
        if self._partials is None or len(self._partials) < max_items:
            arch = self._arch
            self._partials = allocate_partials(
                max_items,
                kv_heads=arch.kv_heads,
                group=arch.group,
                head_dim=arch.head_dim,
                device=self._device,
            )
        return self._partials

    def _items(self, rows: int) -> int:
        """The most items of a plan for that many rows' bucket."""
        bucket = bucket_for(rows)
        if self._fixed_pages:
            return bucket * -(-self._table_pages // self._fixed_pages)
        return items_for(bucket, kv_heads=self._arch.kv_heads, cores=self._cores)
