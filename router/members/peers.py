"""The routers of the cluster, as reported by workers: each router introduces itself to the
workers."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.v1 import worker_pb2

FORGET_S = 5.0  # a router that no worker has reported for this long is gone
MOST_ROUTERS = 256


class Peers:
    """The known routers by id; of two incarnations, the one that was reported last."""

    def __init__(self, own: worker_pb2.RouterAddress) -> None:
        self._own = own
        self._named: dict[str, tuple[float, worker_pb2.RouterAddress]] = {}

    def note(
        self, routers: Iterable[worker_pb2.RouterAddress], now: float
    ) -> list[worker_pb2.RouterAddress]:
        """Record the routers that a worker has reported. Returns all known routers, this one
        included."""
        self._forget(now)
        for router in routers:
            is_known = router.router_id in self._named
            is_own = router.router_id == self._own.router_id
            if not is_own and (is_known or len(self._named) < MOST_ROUTERS):
                self._named[router.router_id] = now, router
        return [self._own, *(router for _, router in self._named.values())]

    def client_doors(self) -> list[str]:
        """host:port of the clients' gRPC doors: the other routers' as last reported, and this
        router's last."""
        known = [*(router for _, router in self._named.values()), self._own]
        return [router.grpc_endpoint for router in known if router.grpc_endpoint]

    def _forget(self, now: float) -> None:
        self._named = {
            router_id: (named, router)
            for router_id, (named, router) in self._named.items()
            if now - named < FORGET_S
        }
