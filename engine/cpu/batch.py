"""A step's rows, packed without padding: the index arrays of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twolane.engine.step import RowWork

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """n tokens of r rows; row i has the tokens `offsets[i] : offsets[i] + lengths[i]`.

    `pages` concatenates the pages of all rows; row i's begin at `page_offsets[i]`.
    """

    token_ids: IndexArray  # [n]
    positions: IndexArray  # [n]
    offsets: IndexArray  # [r]
    starts: IndexArray  # [r] position of the row's first token of this step
    lengths: IndexArray  # [r]
    pages: IndexArray
    page_offsets: IndexArray  # [r]
    token_pages: IndexArray  # [n] the page of each token
    token_slots: IndexArray  # [n] the token's slot in its page

    @property
    def ends(self) -> IndexArray:
        """[r] one past the row's last position in the pages after this step."""
        return self.starts + self.lengths


def pack(work: Sequence[RowWork], page_tokens: int) -> PackedRows:
    """Pack rows that have been checked; at least one."""
    lengths = np.fromiter((row.n_new for row in work), np.int64, len(work))
    starts = np.fromiter((row.start for row in work), np.int64, len(work))
    offsets = np.cumsum(lengths) - lengths
    row_of = np.repeat(np.arange(len(work)), lengths)
    positions = np.arange(int(lengths.sum())) - offsets[row_of] + starts[row_of]
    # Pages past a row's end may be reserved already; this step does not use them.
    needed = -(-(starts + lengths) // page_tokens)
    page_offsets = np.cumsum(needed) - needed
    pages = np.concatenate(
        [np.asarray(row.pages[:n], np.int64) for row, n in zip(work, needed.tolist(), strict=True)]
    )
    token_ids = np.concatenate(
        [np.asarray(row.token_ids[row.start : row.start + row.n_new], np.int64) for row in work]
    )
    return PackedRows(
        token_ids=token_ids,
        positions=positions,
        offsets=offsets,
        starts=starts,
        lengths=lengths,
        pages=pages,
        page_offsets=page_offsets,
        token_pages=pages[page_offsets[row_of] + positions // page_tokens],
        token_slots=positions % page_tokens,
    )
