"""Where the bytes of a page are: in one place, or in a part for each rank. Pure arithmetic.

page       | part 0 | part 1 | part 2 | part 3 |       a part begins at byte `first` of the page
memory     page p of a part lies at address + p * stride
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from twolane.engine.cuda.driver import CopyCommands
from twolane.kvtransfer.copy_plan import PageIds


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [first, first + n_bytes) of each page."""

    address: int
    first: int
    n_bytes: int
    stride: int

    def cut(self, first: int, stop: int) -> Part:
        return Part(self.address + first - self.first, first, stop - first, self.stride)

    @property
    def is_dense(self) -> bool:
        """The parts of consecutive pages are adjacent."""
        return self.stride == self.n_bytes


Parts = tuple[Part, ...]


def parts_of(addresses: Sequence[int], page_bytes: int) -> Parts:
    """The parts of a pool that has an equal share of each page at each of these addresses."""
    n_bytes, rest = divmod(page_bytes, len(addresses))
    assert not rest, "a part for each rank, all alike"
    return tuple(Part(at, i * n_bytes, n_bytes, n_bytes) for i, at in enumerate(addresses))


@dataclass(frozen=True, slots=True)
class Copy:
    """The same bytes of pages at source and target."""

    source: Part
    target: Part

    def commands(self, src: PageIds, dst: PageIds) -> CopyCommands:
        """One for each run of pages.

        In plain Python: where nothing ran before, the first calls of numpy take longer than this
        for a few hundred pages.
        """
        source, target, n_bytes = self.source, self.target, self.source.n_bytes
        is_dense = source.is_dense and target.is_dense
        targets: list[int] = []
        sources: list[int] = []
        sizes: list[int] = []
        next_s = next_d = -1
        for s, d in zip(src.tolist(), dst.tolist(), strict=True):
            if s == next_s and d == next_d and is_dense:
                sizes[-1] += n_bytes
            else:
                targets.append(target.address + d * target.stride)
                sources.append(source.address + s * source.stride)
                sizes.append(n_bytes)
            next_s, next_d = s + 1, d + 1
        return targets, sources, sizes


@lru_cache(maxsize=64)
def copies(source: Parts, target: Parts) -> tuple[Copy, ...]:
    """The copies that move whole pages from `source` to `target`."""
    found = []
    for s in source:
        for t in target:
            first, stop = max(s.first, t.first), min(s.first + s.n_bytes, t.first + t.n_bytes)
            if first < stop:
                found.append(Copy(s.cut(first, stop), t.cut(first, stop)))
    return tuple(found)
