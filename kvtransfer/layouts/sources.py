"""Pages in the receiver's layout: directly from the pool, or converted on the way.

Converted pages are in a small buffer of the source, so that their checksums are computed and they
are sent from the cache; the transport takes a few pages at a time. A source belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from twolane.kvtransfer.digests import Pool
from twolane.kvtransfer.layouts.gather import Ints, gather_of
from twolane.layout import Layout, parse_layout

_BATCH_BYTES = 1024 * 1024
_NO_LIMIT = 1 << 40


class Convert(Protocol):
    """Converts pages of one dtype to another; otherwise both have the same layout."""

    def __call__(self, pages: Pool, out: Pool) -> None:
        """Fill `out` [n, bytes] from `pages` [n, bytes]; neither is kept."""
        ...


class MakeConvert(Protocol):
    """Makes the `Convert` between two layouts that differ in dtype only."""

    def __call__(self, source: Layout, target: Layout) -> Convert: ...


class Source(Protocol):
    """Where an outlet reads pages. `src` is that of a `CopyPlan`."""

    page_bytes: int  # of the receiver's layout
    batch_pages: int  # most pages of one `take`

    def take(self, src: Ints) -> tuple[Pool, Ints]:
        """These pages, as a memory and page numbers in it. Valid until the next `take`."""
        ...


class WholePages:
    """Both sides have one layout: nothing is converted, nothing is copied."""

    batch_pages = _NO_LIMIT

    def __init__(self, pool: Pool) -> None:
        assert pool.flags.c_contiguous
        assert pool.ndim == 2
        self.page_bytes: int = pool.shape[1]
        self._pool = pool

    def take(self, src: Ints) -> tuple[Pool, Ints]:
        return self._pool, src


class MadePages:
    """Pages of `target`'s layout, converted from those in `pool`; both with all their ranks.

    Each byte is read and written once, and once more where the dtype changes. Units past the end of
    a row are filled with zeros.
    """

    def __init__(
        self, pool: Pool, source: Layout, target: Layout, make: MakeConvert | None = None
    ) -> None:
        assert pool.flags.c_contiguous
        assert pool.shape[1] == source.page_bytes
        alike = replace(target, dtype=source.dtype)
        gather = gather_of(source, alike)
        self.page_bytes = target.page_bytes
        self.batch_pages = max(1, _BATCH_BYTES // max(alike.page_bytes, target.page_bytes))
        self._gather = gather
        self._convert = None if make is None else make(alike, target)
        self._slots_a_page = source.page_tokens // math.gcd(source.page_tokens, target.page_tokens)
        self._granules = pool.reshape(-1, gather.granule_bytes)
        self._granules_a_page = source.page_bytes // gather.granule_bytes
        self._memory: Pool = np.empty((self.batch_pages, alike.page_bytes), dtype=np.uint8)
        self._converted = self._memory
        if make is not None:
            self._converted = np.empty((self.batch_pages, target.page_bytes), dtype=np.uint8)

    def take(self, src: Ints) -> tuple[Pool, Ints]:
        n, gather = len(src), self._gather
        assert n <= self.batch_pages
        slots = src.reshape(n, -1)[:, gather.unit]
        page, place = slots // self._slots_a_page, slots % self._slots_a_page
        at: Ints = page * self._granules_a_page + gather.start + place * gather.step
        made = self._memory[:n].reshape(-1, gather.granule_bytes)
        np.take(self._granules, at.reshape(-1), 0, made, mode="clip")
        made[slots.reshape(-1) < 0] = 0
        if self._convert is not None:
            self._convert(self._memory[:n], self._converted[:n])
        return self._converted, np.arange(n, dtype=np.int64)


class PageMaker:
    """Sources of one pool for receivers of any layout. `converts` by target dtype.

    Without the pool's own `layout`, or without bytes in host memory (a GPU's pool is [0, bytes]),
    only receivers of equal layout have a source.
    """

    def __init__(
        self, pool: Pool, layout: str = "", converts: Mapping[str, MakeConvert] | None = None
    ) -> None:
        self._pool = pool
        self._layout = layout if pool.size else ""
        self._converts = converts or {}

    @property
    def makes_dtypes(self) -> tuple[str, ...]:
        """Dtypes of SenderHello."""
        return (parse_layout(self._layout).dtype, *self._converts) if self._layout else ()

    def source_for(self, layout: str) -> Source:
        """The source for a receiver's layout (ReceiverHello), which `mismatch` has accepted."""
        if layout in ("", self._layout) or not self._layout:
            return WholePages(self._pool)
        ours, theirs = parse_layout(self._layout), parse_layout(layout)
        make = None if theirs.dtype == ours.dtype else self._converts[theirs.dtype]
        return MadePages(self._pool, ours, theirs, make)
