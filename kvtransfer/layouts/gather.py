"""Which byte of a source page becomes which byte of a target page. Pure arithmetic, no bytes moved.

Two sides of one model may differ in three ways, and each has its own step:

    ranks     `head_spans`     which heads go from which source rank to which target rank
    tokens    `Paging`    which units of source pages a target page consists of
    planes    `Gather`    which bytes of these units, in the order of the target page

    unit = gcd(page_tokens) tokens          source pages   |  0  1  2  3 |  4  5  6  7 |  64 tokens
    target page 1 = units 2, 3              target pages   |  0  1 |  2  3 |  4  5 |      32 tokens

Each unit of a source page has a number, its slot: page * units_a_page + place. A target page is a
list of slots, with -1 where the row has ended; those bytes are 0.

Several ranks. A page is the concatenation of the pages of all ranks: byte b of it is byte
b % rank_page_bytes in the page of rank b // rank_page_bytes, so one `Gather` converts whole pages.
A target rank takes each head from exactly one source rank; where several source ranks have a head,
the target ranks take turns, so that no source rank is read for all:

    split        source |0 1 2 3|           merged       source |0 1|  |2 3|
                 target |0 1|  |2 3|                     target |0 1 2 3|

    replicated   source |0 1|               from copies  source |0|  |0|  |1|  |1|
                 target |0|  |0|  |1|  |1|               target |0 1|     (ranks 0 and 2 are read)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twolane.layout import DTYPE_BYTES, SCALE_BYTES, Layout

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeadSpan:
    """`n_heads` neighbouring heads that one source rank and one target rank both have."""

    source_rank: int
    target_rank: int
    source_head: int  # the first one's place in the source rank
    target_head: int  # its place in the target rank
    n_heads: int


def head_spans(source: Layout, target: Layout) -> list[HeadSpan]:
    """All spans, by target rank and head. Each head of each target rank is in exactly one."""
    whole = source.whole_kv_heads
    assert whole == target.whole_kv_heads, "two models"
    found: list[HeadSpan] = []
    for rank in range(target.ranks):
        first = rank * whole // target.ranks
        held = [_holder(source, first + i, rank) for i in range(target.kv_heads)]
        start = 0
        for i in range(1, len(held) + 1):
            if i == len(held) or held[i][0] != held[start][0]:
                found.append(HeadSpan(held[start][0], rank, held[start][1], start, i - start))
                start = i
    return found


def _holder(side: Layout, head: int, turn: int) -> tuple[int, int]:
    """(rank, place in it) of a model's head; `turn` picks one of several ranks that have it."""
    if side.ranks <= side.whole_kv_heads:
        return divmod(head, side.kv_heads)
    copies = side.ranks // side.whole_kv_heads
    return head * copies + turn % copies, 0


@dataclass(frozen=True, slots=True)
class Paging:
    """How both sides cut a row of tokens into pages."""

    source_tokens: int  # a page
    target_tokens: int
    target_bytes: int  # of a page

    @property
    def is_even(self) -> bool:
        """Each target page is one source page."""
        return self.source_tokens == self.target_tokens

    @property
    def units(self) -> int:
        """How many pieces a target page has; each lies in one source page."""
        return self.target_tokens // math.gcd(self.source_tokens, self.target_tokens)

    def n_pages(self, n_tokens: int) -> int:
        """How many target pages a row has."""
        return -(-n_tokens // self.target_tokens)

    def n_ready(self, n_offered: int, n_tokens: int) -> int:
        """How many target pages the first n_offered source pages of a row complete."""
        n = n_offered * self.source_tokens
        return self.n_pages(n_tokens) if n >= n_tokens else n // self.target_tokens

    def n_sources(self, n_targets: int, n_tokens: int) -> int:
        """How many source pages of a row its first n_targets target pages need."""
        return -(-min(n_targets * self.target_tokens, n_tokens) // self.source_tokens)

    def sources(self, offered: Sequence[int], first: int, stop: int, n_tokens: int) -> Ints:
        """The source pages that target pages [first, stop) of a row are made of.

        [n] source pages if `is_even`; else [n, units] slots, -1 for units past the row's end.
        """
        if self.is_even:
            return np.asarray(offered[first:stop], dtype=np.int64)
        unit = math.gcd(self.source_tokens, self.target_tokens)
        a_page, wanted = self.source_tokens // unit, self.units
        units = np.arange(first * wanted, stop * wanted, dtype=np.int64).reshape(-1, wanted)
        begin = first * wanted // a_page  # earlier pages are not needed
        pages = np.asarray(offered[begin : -(-stop * wanted // a_page)], dtype=np.int64)
        in_row = units * unit < n_tokens
        held = pages[np.where(in_row, units // a_page - begin, 0)]
        return np.where(in_row, held * a_page + units % a_page, -1)


@dataclass(frozen=True, slots=True)
class Gather:
    """Where each granule of a target page comes from.

    Granule k of the target page belongs to its unit `unit[k]`. That unit is in a source page, at
    place `place`, and the granule is granule `start[k] + place * step[k]` of that source page.

    Example: keys and values of 8 bytes a token, source pages of 4 tokens, target pages of 2, so a
    unit is 2 tokens. A granule has 16 bytes. A source page has 4: keys of tokens 0-1, of 2-3,
    values of 0-1, of 2-3; a target page has 2: keys, values. Then unit is [0, 0], start [0, 2],
    step [1, 1]: the target page at place 1 of a source page takes its granules 0 + 1 and 2 + 1.

    Granules are as large as all offsets and sizes allow.
    """

    granule_bytes: int
    unit: Ints
    start: Ints
    step: Ints

    @property
    def page_bytes(self) -> int:
        return self.granule_bytes * self.unit.size

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """(unit, byte of the source page at place 0, byte of the target page, bytes), longest."""
        same = (np.diff(self.start) == 1) & (np.diff(self.unit) == 0) & (np.diff(self.step) == 0)
        edges = [0, *(np.flatnonzero(~same) + 1).tolist(), self.unit.size]
        q = self.granule_bytes
        for a, b in itertools.pairwise(edges):
            yield int(self.unit[a]), int(self.start[a]) * q, a * q, (b - a) * q


@dataclass(frozen=True, slots=True)
class _Band:
    """Part of a plane: `rows` of `page_tokens` times `token_bytes`, behind the bands before it."""

    rows: int
    token_bytes: int


def _bands(layout: Layout, *, is_values: bool) -> list[_Band]:
    size, scale = DTYPE_BYTES[layout.dtype], SCALE_BYTES.get(layout.dtype)
    if scale is None:
        return [_Band(1, layout.head_dim * size)]
    held = _Band(layout.head_dim, size) if is_values else _Band(1, layout.head_dim * size)
    return [held, _Band(1, scale)]


class _Runs:
    """Collects runs of bytes of equal length."""

    def __init__(self) -> None:
        self.parts: list[tuple[Ints, Ints, Ints, int, int]] = []  # to, unit, start, step, bytes

    def add(self, to: Ints, unit: Ints, start: Ints, step: int, n_bytes: int) -> None:
        to, unit, start = (np.ravel(array) for array in np.broadcast_arrays(to, unit, start))
        self.parts.append((to, unit, start, step, n_bytes))

    def gather(self, *sizes: int) -> Gather:
        """In granules that `sizes` divide by, too."""
        q = math.gcd(*sizes)
        for to, _, start, step, n_bytes in self.parts:
            q = math.gcd(q, step, n_bytes, int(np.gcd.reduce(to)), int(np.gcd.reduce(start)))
        columns = []
        for to, unit, start, step, n_bytes in self.parts:
            inner = np.arange(n_bytes // q, dtype=np.int64)
            column = np.empty((4, to.size, inner.size), dtype=np.int64)
            column[0] = to[:, None] // q + inner
            column[1] = unit[:, None]
            column[2] = start[:, None] // q + inner
            column[3] = step // q
            columns.append(column.reshape(4, -1))
        whole = np.concatenate(columns, axis=1)
        to, unit, start, step_of = whole[:, np.argsort(whole[0], kind="stable")]
        assert (to == np.arange(to.size)).all(), "each byte of a page once"
        return Gather(q, unit, start, step_of)


def gather_of(source: Layout, target: Layout) -> Gather:
    """The gather between two layouts of one dtype. A conversion of the dtype comes before or
    after it."""
    assert source.dtype == target.dtype, "bytes are moved here, not converted"
    assert (source.layers, source.head_dim) == (target.layers, target.head_dim)
    found = _Runs()
    for span in head_spans(source, target):
        _add_heads(found, source, target, span)
    return found.gather(source.page_bytes, target.page_bytes)


def _add_heads(found: _Runs, source: Layout, target: Layout, span: HeadSpan) -> None:
    planes = np.arange(source.layers * 2, dtype=np.int64)  # of a head: layer by layer, keys first
    none = np.zeros(1, dtype=np.int64)
    to_rank = span.target_rank * target.rank_page_bytes
    from_rank = span.source_rank * source.rank_page_bytes
    if source.page_tokens == target.page_tokens:
        if source.kv_heads == target.kv_heads == span.n_heads:
            found.add(none + to_rank, none, none + from_rank, 0, source.rank_page_bytes)
            return
        to = to_rank + (planes * target.kv_heads + span.target_head) * target.plane_bytes
        start = from_rank + (planes * source.kv_heads + span.source_head) * source.plane_bytes
        found.add(to, none, start, 0, span.n_heads * source.plane_bytes)
        return
    unit = math.gcd(source.page_tokens, target.page_tokens)
    units = np.arange(target.page_tokens // unit, dtype=np.int64)[:, None, None, None]
    heads = np.arange(span.n_heads, dtype=np.int64)[:, None]
    for is_values in (False, True):
        own = planes[int(is_values) :: 2, None, None]
        at = 0  # bytes a token before this band
        for band in _bands(source, is_values=is_values):
            row = np.arange(band.rows, dtype=np.int64) * band.token_bytes + at
            to = (own * target.kv_heads + span.target_head + heads) * target.plane_bytes
            start = (own * source.kv_heads + span.source_head + heads) * source.plane_bytes
            run_bytes = unit * band.token_bytes
            found.add(
                to_rank + to + row * target.page_tokens + units * run_bytes,
                units,
                from_rank + start + row * source.page_tokens,
                run_bytes,
                run_bytes,
            )
            at += band.rows * band.token_bytes
