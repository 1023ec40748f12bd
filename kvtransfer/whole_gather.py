"""The gather of a page of all ranks: every lane's, over the concatenations of the ranks' pages.

source page   | rank 0's | rank 1's |            target page   | rank 0's | ... | rank 3's |
"""

from __future__ import annotations

import math

import numpy as np

from kvtransfer.planes import Gather, Ints, gather_of, lanes
from twolane.layout import Layout


def whole_gather(source: Layout, target: Layout) -> Gather:
    """How each byte of a target page is found in a source page, in the order of the target page:
    `to` counts up from 0. Both of one dtype. A page is that of all ranks, in their order; a unit's
    places lie in the part of the source page that its `start` is in.
    """
    found = [(lane, gather_of(source, target, lane)) for lane in lanes(source, target)]
    q = math.gcd(source.page_bytes, target.page_bytes, *(g.granule_bytes for _, g in found))
    columns = []
    for lane, gather in found:
        cut = gather.granule_bytes // q
        inner = np.arange(cut, dtype=np.int64)
        to = lane.target_rank * (target.page_bytes // q)
        start = lane.source_rank * (source.page_bytes // q)
        column = np.empty((4, gather.to.size, cut), dtype=np.int64)
        column[0] = to + gather.to[:, None] * cut + inner
        column[1] = gather.unit[:, None]
        column[2] = start + gather.start[:, None] * cut + inner
        column[3] = gather.step[:, None] * cut
        columns.append(column.reshape(4, -1))
    whole: Ints = np.concatenate(columns, axis=1)
    to, unit, start, step = whole[:, np.argsort(whole[0], kind="stable")]
    assert (to == np.arange(to.size)).all(), "every granule once"
    return Gather(q, to, unit, start, step)
