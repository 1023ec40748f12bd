"""Whose a row is."""

from __future__ import annotations

from typing import NamedTuple


class Owner(NamedTuple):
    """The router process that assigned a row. Nobody else's commands change it."""

    router_id: str
    router_epoch: int
