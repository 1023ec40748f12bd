"""Attention of a pass's chunks: over the pool itself, or over FP8 pages dequantised first.

    pool of the model's dtype    chunk -> prefill attention over the pool
    FP8 pool, long chunks        a layer's pages, dequantised to scratch -> the same over scratch
    FP8 pool, short chunks       over the pool, each page dequantised as it is read

Dequantising first costs 3 bytes per value once; dequantising on read costs instructions for each
128 queries and head. Exact mode never uses scratch: whether a chunk is long depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from twolane.engine.cuda.inputs import DeviceInputs
from twolane.engine.kernels.attention.prefill_attention import (
    PrefillConfig,
    config_for,
    prefill_attention,
)
from twolane.engine.kernels.launch import card_of
from twolane.engine.kernels.pages.dequantise import dequantise_pages
from twolane.engine.kernels.pages.kv_view import KVView

LONG_TOKENS = 32  # new tokens per row from which pages are dequantised first
SCRATCH_BYTES = 1 << 30  # at most; otherwise pages are dequantised as they are read


@dataclass(frozen=True, slots=True)
class Scratch:
    """Dequantised pages of one layer at a time, for one pass; row r has the pages `tables[r]`."""

    view: KVView
    tables: torch.Tensor


class ChunkAttention:
    """For one pool. `config` has the tile size that plans must use, for either way."""

    def __init__(self, view: KVView, dtype: torch.dtype, *, exact: bool) -> None:
        self._view = view
        self._dtype = dtype
        self.config = config_for(view)
        self._wide_config: PrefillConfig | None = None
        if view.has_scales and not exact:
            wide = config_for(self._wide_view(1))
            if wide.overlapped or card_of(view.values.device) is None:
                self._wide_config = wide
                self.config = replace(self.config, block_tokens=wide.block_tokens)

    @property
    def dequantises(self) -> bool:
        """Whether passes with long chunks need scratch, as much as their rows have pages."""
        return self._wide_config is not None

    def scratch(self, inputs: DeviceInputs, n_decode: int) -> Scratch | None:
        """Room for the dequantised pages of the pass's chunks; None if they are dequantised on
        read."""
        rows, pages = inputs.shape.rows - n_decode, inputs.shape.chunk_pages
        long = inputs.shape.tokens - n_decode >= LONG_TOKENS * rows
        if self._wide_config is None or not rows or not long:
            return None
        n_pages, page_bytes = rows * pages, self._page_values * self._dtype.itemsize
        if n_pages * page_bytes > SCRATCH_BYTES:
            return None
        device = inputs.tables.device
        tables = torch.empty(n_pages, dtype=torch.int32, device=device)
        if device.type != "meta":
            torch.arange(n_pages, out=tables)
        return Scratch(self._wide_view(n_pages), tables.view(rows, pages))

    def __call__(
        self,
        queries: torch.Tensor,
        layer: int,
        inputs: DeviceInputs,
        n_decode: int,
        tiles: torch.Tensor,
        scratch: Scratch | None,
        *,
        out: torch.Tensor,
        scale: float,
        window: int,
    ) -> None:
        """queries, out `[chunks' tokens, heads, head_dim]`; `tiles` of this window."""
        view, tables, config = self._view, inputs.tables[n_decode:], self.config
        if scratch is not None:
            assert self._wide_config is not None
            dequantise_pages(view, layer, tables, inputs.lengths[n_decode:], out=scratch.view)
            view, layer, tables, config = scratch.view, 0, scratch.tables, self._wide_config
        prefill_attention(
            queries, view, layer, tables, tiles,
            out=out, scale=scale, window=window, config=config,
        )  # fmt: skip

    @property
    def _page_values(self) -> int:
        view = self._view
        return 2 * view.kv_heads * view.page_tokens * view.head_dim

    def _wide_view(self, n_pages: int) -> KVView:
        view, device = self._view, self._view.values.device
        values = torch.empty(n_pages * self._page_values, dtype=self._dtype, device=device)
        return KVView(
            values=values, layers=1, kv_heads=view.kv_heads, head_dim=view.head_dim,
            page_tokens=view.page_tokens,
        )  # fmt: skip
