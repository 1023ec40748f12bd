"""Numbers of attempts: fence << 16 | n, the n-th try under that fence, from 1.

fence 0   1, 2, 3, …              the router that took the request in
fence 1   65537, 65538, …         one that took it over: always above all that came before
"""

from __future__ import annotations

_N_BITS = 16
MOST_TRIES = (1 << _N_BITS) - 1  # under one fence


def first_attempt(fence: int) -> int:
    """The number of the first try under `fence`, 0 to 65535."""
    assert 0 <= fence < 1 << 16
    return fence << _N_BITS | 1


def next_attempt(number: int) -> int:
    """The next try under the same fence. It has at most `MOST_TRIES`: a request that fails, or
    gets nowhere, is given up after far fewer."""
    assert try_of(number) < MOST_TRIES, "no number is left under this fence"
    return number + 1


def fence_of(number: int) -> int:
    return number >> _N_BITS


def try_of(number: int) -> int:
    """Which try under its fence, from 1; 0: this is no attempt's number."""
    return number & MOST_TRIES
