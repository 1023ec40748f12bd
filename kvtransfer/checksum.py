"""xxh3-64 of pages: 26 GB/s on one core here, so it costs less than a second copy would."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

Pool = npt.NDArray[np.uint8]  # [n_pages, page_bytes]


def page_checksums(pool: Pool, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """One xxh3-64 a page, in the order of `pages`. Reads every byte of them once.

    xxhash holds the GIL, for a few microseconds a page.
    """
    size = pool.shape[1]
    flat = pool.data.cast("B")
    digest = xxhash.xxh3_64_intdigest
    starts = (pages * size).tolist()
    return np.fromiter(
        (digest(flat[start : start + size]) for start in starts), np.uint64, count=pages.size
    )
