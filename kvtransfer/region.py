"""Where the pages of a pool lie, as a network card is told."""

from __future__ import annotations

from dataclasses import dataclass

from kvtransfer.checksum import Pool


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of this process. Several of one pool are of one size: page p is the concatenation of
    the p-th part of each."""

    address: int
    n_bytes: int
    device: int | None = None  # ordinal of the GPU that it is on; None: host memory


def region_of(pool: Pool) -> Region:
    """Of a pool in host memory, which must outlive it."""
    assert pool.flags.c_contiguous
    return Region(pool.ctypes.data, pool.nbytes)
