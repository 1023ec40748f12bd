"""Which rank a process is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `ranks`; `store` is the file through which they find each other."""

    rank: int
    ranks: int
    store: str
