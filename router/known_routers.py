"""The known routers, as reported by workers, the launcher and the store."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.router.members.peers import Peers
from twolane.router.store import Store, to_address
from twolane.v1 import worker_pb2

_MOST_NAMED = 32  # an error has room for some thousand bytes


class KnownRouters:
    """`own` is this router's address, which may change. This class reads no clock: the caller
    passes `now`."""

    def __init__(self, own: worker_pb2.RouterAddress, store: Store) -> None:
        self._peers = Peers(own)
        self._store = store
        self.settled_at = 0.0  # when every running router has been reported; set at the start

    def hear(
        self, routers: Iterable[worker_pb2.RouterAddress], now: float
    ) -> list[worker_pb2.RouterAddress]:
        """Record that these routers are running. Returns all known routers, this one first. Their
        number decides each router's part of quotas that no store counts for all."""
        shared = map(to_address, self._store.routers())
        known = self._peers.note([*routers, *shared], now)
        self._store.note_routers(len(known))
        return known

    def client_doors(self) -> list[str]:
        """host:port of the gRPC doors of the other routers, then of this one."""
        return self._peers.client_doors()

    def as_metadata(self) -> dict[str, str]:
        """For a refusal, so that the client continues at another router."""
        return {"routers": ",".join(self.client_doors()[-_MOST_NAMED:])}

    def announced_doors(self, now: float) -> list[str]:
        """As `client_doors`, for clients; empty while this router has just started and knows no
        other, because a client that knows of one router looks for another for a short time only."""
        doors = self.client_doors()
        return doors if len(doors) > 1 or now >= self.settled_at else []

    def others(self, now: float) -> list[worker_pb2.RouterAddress]:
        """The other routers that can be called."""
        return [router for router in self.hear((), now)[1:] if router.workers_endpoint]
