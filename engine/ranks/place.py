"""Which rank a process is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `ranks`; `store` is the file through which they meet, `pool_fd` the one that
    holds the pages of ranks on a CPU (`twolane.engine.parallel.pool_file`)."""

    rank: int
    ranks: int
    store: str
    pool_fd: int = -1
