"""What several routers of one cluster would have to share, and only that.

A shared implementation may write behind and answer from a mirror: nothing here is needed for
safety, which rests on epochs checked at the workers. `claim` alone needs a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from twolane.v1 import cluster_pb2


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a request is: what another router would need to ATTACH to it."""

    attempt: int
    prefill_epoch: int
    decode_epoch: int


class Store(Protocol):
    """Who is where, and which attempt a request is at."""

    async def claim(self, request_id: str, router_id: str) -> bool:
        """Make the id this router's own. False: it is in use."""
        ...

    def release(self, request_id: str) -> None:
        """The request is over: its id is free, its whereabouts are forgotten."""
        ...

    def put_attempt(self, request_id: str, where: Whereabouts) -> None: ...

    def attempt_of(self, request_id: str) -> Whereabouts | None: ...

    def put_worker(self, announce: cluster_pb2.AnnounceRequest) -> None: ...

    def drop_worker(self, epoch: int) -> None: ...

    def workers(self) -> Iterable[cluster_pb2.AnnounceRequest]:
        """Workers that some router knows: a router that starts dials them without waiting."""
        ...


class MemoryStore:
    """For one router."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._attempts: dict[str, Whereabouts] = {}
        self._workers: dict[int, cluster_pb2.AnnounceRequest] = {}

    async def claim(self, request_id: str, router_id: str) -> bool:
        if request_id in self._owners:
            return False
        self._owners[request_id] = router_id
        return True

    def release(self, request_id: str) -> None:
        self._owners.pop(request_id, None)
        self._attempts.pop(request_id, None)

    def put_attempt(self, request_id: str, where: Whereabouts) -> None:
        self._attempts[request_id] = where

    def attempt_of(self, request_id: str) -> Whereabouts | None:
        return self._attempts.get(request_id)

    def put_worker(self, announce: cluster_pb2.AnnounceRequest) -> None:
        self._workers[announce.worker.epoch] = announce

    def drop_worker(self, epoch: int) -> None:
        self._workers.pop(epoch, None)

    def workers(self) -> Iterable[cluster_pb2.AnnounceRequest]:
        return list(self._workers.values())
