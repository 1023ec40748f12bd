"""How many file descriptors this process may have, and how a router divides them among its doors.

limit ──> open now │ workers and files │ gRPC connections │ HTTP connections
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

LEAST = 32  # an idle router has about 28 open
MOST = 65_536  # more than all bounds together; some programs walk through all numbers
_RESERVE = 1024  # for workers' sessions and files, or a quarter of what is left where that is less


class UnfitSystemError(Exception):
    """No process of a cluster can run here: the limit is too low for it even to load its modules,
    or /proc is missing, by which workers tell hosts and processes apart."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one. Returns it. Raises `UnfitSystemError`."""
    if not os.path.isdir("/proc/self/fd"):
        raise UnfitSystemError(
            "/proc is not mounted: twolane needs it to tell its processes apart; "
            "see `mount -t proc proc /proc`"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    limit = MOST if soft == resource.RLIM_INFINITY else soft
    if limit < LEAST:
        raise UnfitSystemError(
            f"too few descriptors: this process may open {limit} files and sockets, and needs at "
            f"least {LEAST}; see `ulimit -n`"
        )
    return limit


@dataclass(frozen=True, slots=True)
class Shares:
    """The most connections at each of a router's doors."""

    grpc: int
    http: int


def share(limit: int, n_open: int) -> Shares:
    """Divide `limit` descriptors, of which `n_open` are in use, among a router's doors; at least
    one each."""
    left = max(0, limit - n_open)
    left -= min(_RESERVE, left // 4)
    return Shares(grpc=max(1, left // 2), http=max(1, left - left // 2))


def count_open() -> int:
    """The number of descriptors that this process has open now."""
    return len(os.listdir("/proc/self/fd"))
