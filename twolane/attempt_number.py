"""Numbers of attempts: fence << 16 | n, the n-th try under that fence, from 1.

fence 0   1, 2, 3, …              the router that took the request in
fence 1   65537, 65538, …         one that took it over: always above all that came before
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
    """The try after `number` by a router that holds the request under `fence`: the first of its own
    where that number was another's. A fence has at most `MOST_TRIES`: a request that fails, or gets
    nowhere, is given up after far fewer."""
    if fence_of(number) < fence:  # guard: own numbers
        return first_attempt(fence)
    assert fence_of(number) == fence, "the attempt is of a router that took this one's request over"
    assert try_of(number) < MOST_TRIES, "no number is left under this fence"
    return number + 1


def fence_of(number: int) -> int:
    return number >> _N_BITS


def try_of(number: int) -> int:
    """Which try under its fence, from 1; 0: this is no attempt's number."""
    return number & MOST_TRIES
