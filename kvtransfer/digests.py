"""The 64-bit checksums of pages that two sides compare, and how a CPU computes them.

    xxh3    xxh3-64: the quickest on a CPU; at 26 GB/s a core it costs less than a second copy would
    mix64   sum over the page's little-endian words w of 8 bytes of mix(w + (i + 1) * STEP), where i
            counts words and mix is the output function of splitmix64. Words are taken in any order,
            so a GPU's programs share a page (`twolane.engine.kernels.pages.page_checksum`)

A damaged page passes with odds of 2^-64. A change of one word is always seen, as mix is one to one.
Neither protects against forged pages: the encrypted page lane does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

Pool = npt.NDArray[np.uint8]  # [n_pages, page_bytes]
PageSums = Callable[[Pool, npt.NDArray[np.int64]], npt.NDArray[np.uint64]]

XXH3, MIX64 = "xxh3", "mix64"
HOST_DIGESTS = (XXH3, MIX64)  # that a pool in host memory can be summed by, best first
DEVICE_DIGESTS = (MIX64,)

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BLOCK_WORDS = 8192  # of a turn: they stay in the cache
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


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


def mix64(pool: Pool, pages: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """One mix64 a page, in the order of `pages`. A page is a multiple of 8 bytes."""
    words = pool.view("<u8")
    n_words = words.shape[1]
    sums = np.zeros(pages.size, dtype=np.uint64)
    keys = np.arange(1, min(n_words, _BLOCK_WORDS) + 1, dtype=np.uint64) * _STEP
    for at in range(0, n_words, _BLOCK_WORDS):
        offset = np.array([at], dtype=np.uint64) * _STEP  # an array: it wraps without a warning
        for nth, page in enumerate(pages.tolist()):
            block = words[page, at : at + _BLOCK_WORDS]
            x = block + keys[: block.size]
            x += offset
            x ^= x >> _30
            x *= _FIRST
            x ^= x >> _27
            x *= _SECOND
            x ^= x >> _31
            sums[nth : nth + 1] += x.sum(dtype=np.uint64)
    return sums


def page_sums(digest: str) -> PageSums:
    """How a CPU takes that sum. Raises KeyError for a name that is none."""
    return {XXH3: page_checksums, MIX64: mix64}[digest]


def agreed_digest(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """The first of ours that they know; empty: none."""
    return next((name for name in ours if name in theirs), "")
