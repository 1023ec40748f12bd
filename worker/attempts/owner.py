"""Which router owns a row."""

from __future__ import annotations

from typing import NamedTuple


class Owner(NamedTuple):
    """The router process that assigned a row. Only its commands change the row."""

    router_id: str
    router_epoch: int
