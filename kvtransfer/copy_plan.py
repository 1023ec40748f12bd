"""What a post copies: source pages to destination pages, as arrays.

Between equal layouts a destination page is a source page:

    source pool       . 7 8 9 . . 3 .        plan:  src [7 8 9 3]
                        | | |     |                 first = index in the grant of the first page
    grant's pages      20 21 22  31                 dst [20 21 22 31]

`runs` merges neighbours: (7 -> 20, 3 pages), (3 -> 31, 1 page). Between unequal layouts `src` has a
list of slots for each destination page: see `twolane.kvtransfer.layouts.gather`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Pages of one post. `src` and `dst` have the same length, at least 1; they are not modified.

    Only the outlet's `Source` interprets `src`. `after`: no page is read before the device has
    passed this event.
    """

    first: int
    src: PageIds
    dst: PageIds
    after: object | None = None  # a `twolane.kvtransfer.device.Mark`

    def __post_init__(self) -> None:
        assert len(self.src) == len(self.dst) >= 1
        assert self.dst.ndim == 1
        assert self.first >= 0

    @classmethod
    def of(cls, first: int, src: Sequence[int], dst: Sequence[int]) -> CopyPlan:
        return cls(first, np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64))

    @property
    def n_pages(self) -> int:
        return int(self.dst.size)


def runs(*columns: PageIds) -> list[tuple[int, int]]:
    """Bounds [start, stop) of the longest stretches in which every column counts up by one.

    Vectorised: the cost in Python is one step a run, not one a page.
    """
    size = columns[0].size
    if size == 0:
        return []
    breaks = np.zeros(size - 1, dtype=bool)
    for column in columns:
        breaks |= np.diff(column) != 1
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), size]
    return list(itertools.pairwise(edges))
