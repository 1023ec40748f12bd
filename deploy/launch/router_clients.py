"""What the supervisor asks of all routers: one that does not answer now hides nothing that the
others know."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from twolane.deploy.launch.router_client import RouterClient
from twolane.deploy.process.handshake import Handle
from twolane.security.credentials import Credentials
from twolane.v1 import cluster_pb2, worker_pb2

_BEST = ("alive", "draining", "suspect", "joining", "gone")  # words of WorkerStatus.state


class RouterClients:
    """An async context manager around a client of each. A router that is started again comes back
    at the same ports."""

    def __init__(self, routers: Sequence[Handle], credentials: Credentials) -> None:
        addresses = [_address(router) for router in routers]
        self._clients = [RouterClient(router, credentials, addresses) for router in routers]
        self._stack = AsyncExitStack()

    async def is_serving(self) -> bool:
        return all(await asyncio.gather(*(client.is_serving() for client in self._clients)))

    async def workers(
        self, hosts: Sequence[cluster_pb2.HostStatus] = ()
    ) -> list[cluster_pb2.WorkerStatus]:
        """The members of all routers, each as that one sees it that thinks best of it; none while
        nobody answers. The routers learn what `hosts` are heard."""
        best: dict[int, cluster_pb2.WorkerStatus] = {}
        for members in await asyncio.gather(*(client.workers(hosts) for client in self._clients)):
            for member in members:
                other = best.setdefault(member.worker.epoch, member)
                if _BEST.index(member.state) < _BEST.index(other.state):
                    best[member.worker.epoch] = member
        return list(best.values())

    async def known_to_all(self, state: str) -> set[int]:
        """Epochs that every router calls so."""
        seen = await asyncio.gather(*(client.workers() for client in self._clients))
        return set.intersection(
            *({member.worker.epoch for member in its if member.state == state} for its in seen)
        )

    async def report_gone(self, epoch: int, proof_class: str = "A") -> bool:
        """Hand over the proof that `epoch` is dead. False: not to all of them, try again."""
        tasks = (client.report_gone(epoch, proof_class) for client in self._clients)
        return all(await asyncio.gather(*tasks))

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)


def _address(router: Handle) -> worker_pb2.RouterAddress:
    return worker_pb2.RouterAddress(
        router_id=router.name,
        workers_endpoint=router.worker_endpoint,
        grpc_endpoint=router.endpoint,
        http_endpoint=router.http_endpoint,
    )
