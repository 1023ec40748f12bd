"""The paged KV cache: one raw allocation, with a byte view for transfers and a row view for
attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from twolane.engine.errors import EngineConfigError
from twolane.engine.model_files.fp8 import FP8
from twolane.engine.step import ByteArray
from twolane.layout import Layout

TILE_TOKENS = 64  # attention sums over tiles of this many keys, whatever the page size


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """A page is `[layers, 2, kv_heads, page_tokens, head_dim]`: one contiguous run of bytes.

    In FP8, each `[page_tokens, head_dim]` is followed by its `[page_tokens]` float32 scales. Each
    of `ranks` has such a pool with its own heads; all counts here are for one rank, except
    `whole_kv_heads`, the KV heads of the model (0: the sum over the ranks).
    """

    layers: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: torch.dtype
    ranks: int = 1
    whole_kv_heads: int = 0

    @property
    def page_bytes(self) -> int:
        tokens = 2 * self.layers * self.kv_heads * self.page_tokens
        scale_bytes = 4 if self.dtype == FP8 else 0
        return tokens * (self.head_dim * self.dtype.itemsize + scale_bytes)

    @property
    def layout(self) -> str:
        return Layout(
            dtype=str(self.dtype).removeprefix("torch."),
            page_tokens=self.page_tokens,
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            ranks=self.ranks,
            whole_kv_heads=self.whole_kv_heads or self.ranks * self.kv_heads,
        ).to_json()


class KVPool:
    """Pages of keys and values. Uses `memory` if given (the caller unmaps it); otherwise the pool
    allocates. All views below share this memory.

    With `rank`, memory holds the pages of all `shape.ranks`: a page is the concatenation of each
    rank's page, and this pool reads and writes only the part of `rank`.

    `bytes_view`  [n_pages, bytes of a page in memory] uint8: what transfers read and write
    `units`       [n_pages * layers * 2 * kv_heads * units_a_page, unit_tokens * head_dim]: what
                  attention gathers. A unit is the largest run that divides both page and tile
    """

    def __init__(
        self,
        shape: PoolShape,
        n_pages: int,
        *,
        memory: memoryview | None = None,
        rank: int | None = None,
    ) -> None:
        self._parts, self._part = (1, 0) if rank is None else (shape.ranks, rank)
        stride = self._parts * shape.page_bytes
        size = n_pages * stride
        if memory is None:
            raw: ByteArray = np.zeros(size, np.uint8)
        else:
            raw = np.frombuffer(memory, np.uint8)
            if raw.size < size or not raw.flags.writeable:
                raise EngineConfigError(
                    f"pool memory of {raw.size} bytes (writable: {raw.flags.writeable}); "
                    f"{n_pages} pages need {size} writable bytes"
                )
        self.shape = shape
        self.n_pages = n_pages
        self.bytes_view: ByteArray = raw[:size].reshape(n_pages, stride)
        self.unit_tokens = math.gcd(shape.page_tokens, TILE_TOKENS)
        self.units_a_page = shape.page_tokens // self.unit_tokens
        values = torch.from_numpy(self.bytes_view.reshape(-1)).view(shape.dtype)
        self.units = values.view(-1, self.unit_tokens * shape.head_dim)
        # numpy has no bfloat16: values are copied as bits.
        bits = np.dtype(f"i{shape.dtype.itemsize}")
        self._slots: npt.NDArray[np.signedinteger] = self.bytes_view.view(bits).reshape(
            -1, shape.head_dim
        )
        self._pages = self.bytes_view.view(bits).reshape(
            n_pages * self._parts, -1, shape.page_tokens, shape.head_dim
        )
        self._bits = {2: torch.int16, 4: torch.int32}[shape.dtype.itemsize]

    def places(self, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The index of these pages in memory, counted in pages of one rank."""
        return pages * self._parts + self._part

    def write(
        self,
        layer: int,
        first_slots: npt.NDArray[np.int64],
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Write keys and values `[n, kv_heads, head_dim]` of one layer to their slots.

        `first_slots` [n, kv_heads]: where layer 0 keeps each position's key (see `key_slots`).
        """
        shape = self.shape
        plane = shape.kv_heads * shape.page_tokens
        at = first_slots + 2 * layer * plane
        self._slots[at] = keys.contiguous().view(self._bits).numpy()
        self._slots[at + plane] = values.contiguous().view(self._bits).numpy()

    def key_slots(
        self, pages: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """`[n, kv_heads]`: where layer 0 keeps the keys of position `slots[i]` of `pages[i]`."""
        shape = self.shape
        plane = shape.kv_heads * shape.page_tokens
        heads = np.arange(shape.kv_heads) * shape.page_tokens
        return (self.places(pages) * (2 * shape.layers * plane) + slots)[:, None] + heads

    def zero_tail(self, pages: Sequence[int], used: Sequence[int]) -> None:
        """Zero the positions from `used[i]` on of each page, in all layers.

        Attention reads whole tiles, and gives positions past a row's end the weight 0; stale bytes
        there may be NaN, and 0 * NaN would reach the row.
        """
        places = self.places(np.asarray(pages, dtype=np.int64))
        for place, n in zip(places.tolist(), used, strict=True):
            if n < self.shape.page_tokens:
                self._pages[place, :, n:] = 0
