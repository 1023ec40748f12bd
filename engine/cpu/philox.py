"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A counter-based generator: 128 bits of counter and 64 of key give 128 random bits, using integers
only, so that all devices draw the same. There is no sequential state: any worker can draw for any
position of any answer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # each below 2 ** 32

ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(counter: tuple[Words, Words, Words, Words], key: int) -> Words:
    """Four random 32-bit words for each counter: `[4, n]` for four arrays `[n]`; `key` has 64
    bits."""
    # Both halves of a round at once, [2, n] each: few numpy calls, since vocabularies may be small.
    even, odd = np.stack(counter[::2]), np.stack(counter[1::2])
    for i in range(ROUNDS):
        products = even * _MULTIPLIERS
        even = (products >> _32)[::-1] ^ odd
        even ^= _round_key(key, i)
        odd = (products & _LOW)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]])


def _round_key(key: int, i: int) -> Words:
    halves = (key & 0xFFFFFFFF, key >> 32)
    words = [(half + i * s) & 0xFFFFFFFF for half, s in zip(halves, _KEY_STEPS, strict=True)]
    return np.array(words, np.uint64)[:, None]


def token_bits(
    groups: npt.NDArray[np.int64], *, seed: int, sample_index: int, position: int
) -> npt.NDArray[np.uint32]:
    """`[len(groups), 4]` words: row i is for the token ids `4 * groups[i]` to `+ 3`.

    The counter is (group, position, sample index, 0), the key is the seed. The last word is
    reserved for other kinds of draws.
    """
    first = groups.astype(np.uint64)
    words = philox(
        (
            first,
            np.full_like(first, position),
            np.full_like(first, sample_index),
            np.zeros_like(first),
        ),
        seed,
    )
    return words.T.astype(np.uint32)


def uniform(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """The midpoint of one of 2**23 equal parts of (0, 1): exact in float32, never 0 or 1."""
    return ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
