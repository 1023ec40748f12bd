"""The room that all connections of the HTTP door share, and who gives way when it is full.

    accepted ──> waits (for a head, a body, its next request) ──> answered ──┐
                   ▲                                                         │
                   └─────────────────────────────────────────────────────────┘

Who waits longest gives way to who comes: idle connections and unfinished bodies keep nobody out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Protocol

from twolane.refusals import Refusal
from twolane.router.config import HttpConfig
from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)

# A head or body that did not come in time, a door that is full; else HTTP, or its body, is wrong.
_REASONS = {408: Refusal.DEADLINE_EXCEEDED, 503: Refusal.OVERLOADED}


class BudgetedConnection(Protocol):
    """A connection of the door."""

    peer: str  # who is counted: an address, or the network of one; empty for the loopback

    def give_way(self) -> None:
        """End now, with a reason if a request had begun."""
        ...


class ConnectionBudget:
    """Counts connections and the bytes of unfinished bodies."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._n_connections = 0
        self._of_peer: Counter[str] = Counter()
        self._waiting: dict[BudgetedConnection, None] = {}  # longest first
        self._bodies: dict[BudgetedConnection, int] = {}  # bytes, of those that wait
        self._body_bytes = 0
        self.refused: Counter[str] = Counter()  # by `twolane.refusals.Refusal`
        self._log_rate = LogRate()

    def count_refusal(self, status: int) -> None:
        """A request is refused by its connection. What 401 and 403 say, the gate counts."""
        if status not in (401, 403):
            self.refused[_REASONS.get(status, Refusal.INVALID_REQUEST)] += 1

    def try_enter(self, guest: BudgetedConnection) -> bool:
        """Take one more, which waits from now on. False: close it."""
        config = self._config
        if guest.peer and self._of_peer[guest.peer] >= config.connections_per_peer:
            self._refuse(f"{guest.peer} has {config.connections_per_peer} already")
            return False
        if self._n_connections >= config.connections:
            if not self._waiting:
                self._refuse(f"all {config.connections} are being answered")
                return False
            next(iter(self._waiting)).give_way()
        self._n_connections += 1
        self._of_peer[guest.peer] += 1
        self.wait(guest)
        return True

    def _refuse(self, why: str) -> None:
        self.count_refusal(503)
        n = self._log_rate.take("connection", time.monotonic())
        if n:
            log.warning("the HTTP door refused %d connections; the last: %s", n, why)

    def leave(self, guest: BudgetedConnection) -> None:
        """Once, of a guest that has entered; its connection is closed."""
        self.stop_waiting(guest)
        self._n_connections -= 1
        self._of_peer[guest.peer] -= 1
        if not self._of_peer[guest.peer]:
            del self._of_peer[guest.peer]

    def wait(self, guest: BudgetedConnection) -> None:
        """It waits, from now on."""
        self.stop_waiting(guest)
        self._waiting[guest] = None

    def stop_waiting(self, guest: BudgetedConnection) -> None:
        """Its request is complete, or it gives way already. May be called twice."""
        self._waiting.pop(guest, None)
        self._body_bytes -= self._bodies.pop(guest, 0)

    def hold(self, guest: BudgetedConnection, n_bytes: int) -> None:
        """So many bytes more of its unfinished body; the oldest bodies give way if all together
        are too large."""
        self._bodies[guest] = self._bodies.get(guest, 0) + n_bytes
        self._body_bytes += n_bytes
        while self._body_bytes > self._config.bodies_bytes:
            next(iter(self._bodies)).give_way()


def peer_of(host: str) -> str:
    """Who is counted as one: an IPv4 address, a /64 of IPv6. Empty for the loopback, where a proxy
    may stand for many."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return ""  # a Unix socket
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return ""
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address)
