"""The routers that are known here: by workers, by the launcher, and by the store."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.router.members.peers import Peers
from twolane.router.store import Store, to_address
from twolane.v1 import worker_pb2


class KnownRouters:
    """`own` is this router's address, which may change. No clock here: `now` is given."""

    def __init__(self, own: worker_pb2.RouterAddress, store: Store) -> None:
        self._peers = Peers(own)
        self._store = store

    def hear(
        self, routers: Iterable[worker_pb2.RouterAddress], now: float
    ) -> list[worker_pb2.RouterAddress]:
        """These are there. Returns all that are known, ourselves first. Of quotas that nobody
        counts for all of them, each keeps to its part."""
        shared = map(to_address, self._store.routers())
        known = self._peers.note([*routers, *shared], now)
        self._store.note_routers(len(known))
        return known

    def client_doors(self) -> list[str]:
        """host:port of the gRPC doors of the others, then of our own."""
        return self._peers.client_doors()

    def others(self, now: float) -> list[worker_pb2.RouterAddress]:
        """Those that can be called."""
        return [router for router in self.hear((), now)[1:] if router.workers_endpoint]
