"""The budget that all connections of the HTTP door share, and which of them is closed when it is
full.

    accepted ──> waiting (for a head, body or next request) ────> answered ──┐
                   ▲                                                         │
                   └─────────────────────────────────────────────────────────┘

The connection that has waited longest is closed for a new one, so idle connections and incomplete
bodies keep no new one out.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Protocol

from twolane.refusals import Refusal
from twolane.router.config import HttpConfig
from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)

# Statuses for a head or body that did not arrive in time, and for a full door; all others mean
# invalid HTTP or an invalid body.
_REASONS = {408: Refusal.DEADLINE_EXCEEDED, 503: Refusal.OVERLOADED}


class BudgetedConnection(Protocol):
    """A connection of the door."""

    peer: str  # the address or network that is counted; empty for the loopback

    def give_way(self) -> None:
        """Close the connection now, with an error answer if a request had begun."""
        ...


class ConnectionBudget:
    """Counts connections and the bytes of incomplete bodies."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._n_connections = 0
        self._of_peer: Counter[str] = Counter()
        # Those that have waited longest come first.
        self._waiting: dict[BudgetedConnection, None] = {}
        # Bytes of incomplete bodies, by waiting connection.
        self._bodies: dict[BudgetedConnection, int] = {}
        self._body_bytes = 0
        self.refused: Counter[str] = Counter()  # by `twolane.refusals.Refusal`
        self._log_rate = LogRate()

    def count_refusal(self, status: int) -> None:
        """Count a request refused by its connection. The gate counts those with 401 and 403."""
        if status not in (401, 403):
            self.refused[_REASONS.get(status, Refusal.INVALID_REQUEST)] += 1

    def try_enter(self, connection: BudgetedConnection) -> bool:
        """Add a connection, which is now waiting. False if there is no room: close it."""
        config = self._config
        if connection.peer and self._of_peer[connection.peer] >= config.connections_per_peer:
            self._refuse(f"{connection.peer} already has {config.connections_per_peer}")
            return False
        if self._n_connections >= config.connections:
            if not self._waiting:
                self._refuse(f"all {config.connections} connections are being answered")
                return False
            next(iter(self._waiting)).give_way()
        self._n_connections += 1
        self._of_peer[connection.peer] += 1
        self.wait(connection)
        return True

    def _refuse(self, why: str) -> None:
        self.count_refusal(503)
        n = self._log_rate.take("connection", time.monotonic())
        if n:
            log.warning("the HTTP door refused %d connections; the last: %s", n, why)

    def leave(self, connection: BudgetedConnection) -> None:
        """Remove a closed connection. Call it once for each that has entered."""
        self.stop_waiting(connection)
        self._n_connections -= 1
        self._of_peer[connection.peer] -= 1
        if not self._of_peer[connection.peer]:
            del self._of_peer[connection.peer]

    def wait(self, connection: BudgetedConnection) -> None:
        """Record that a connection waits from now on."""
        self.stop_waiting(connection)
        self._waiting[connection] = None

    def stop_waiting(self, connection: BudgetedConnection) -> None:
        """Record that a connection's request is complete, or that it is being closed. May be called
        twice."""
        self._waiting.pop(connection, None)
        self._body_bytes -= self._bodies.pop(connection, 0)

    def hold(self, connection: BudgetedConnection, n_bytes: int) -> None:
        """Count `n_bytes` more of an incomplete body. If all bodies together are too large, the
        oldest connections are closed."""
        self._bodies[connection] = self._bodies.get(connection, 0) + n_bytes
        self._body_bytes += n_bytes
        while self._body_bytes > self._config.bodies_bytes:
            next(iter(self._bodies)).give_way()
