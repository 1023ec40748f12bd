"""Numbers of attempts: fence << 16 | n for the n-th try under that fence, from 1.

fence 0   1, 2, 3, …              the router that accepted the request
fence 1   65537, 65538, …         the router that took it over: above all earlier numbers
"""

from __future__ import annotations

_N_BITS = 16
MOST_TRIES = (1 << _N_BITS) - 1  # under one fence
MOST_FENCE = (1 << _N_BITS) - 1


def first_attempt(fence: int) -> int:
    """The number of the first try under `fence`, 0 to 65535."""
    assert 0 <= fence <= MOST_FENCE
    return fence << _N_BITS | 1


def next_attempt(number: int, fence: int) -> int:
    """The number of the next try after `number`, by a router that holds the request under `fence`:
    its first one if `number` is from a lower fence. A fence has at most `MOST_TRIES` numbers; a
    request that fails or makes no progress is given up after far fewer."""
    if fence_of(number) < fence:  # guard: own numbers
        return first_attempt(fence)
    assert fence_of(number) == fence, "the attempt is from a router that took this request over"
    assert try_of(number) < MOST_TRIES, "no number is left under this fence"
    return number + 1


def fence_of(number: int) -> int:
    return number >> _N_BITS


def try_of(number: int) -> int:
    """The number of the try under its fence, from 1; 0 if `number` is not an attempt's number."""
    return number & MOST_TRIES
