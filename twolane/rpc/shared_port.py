"""Several gRPC servers on one port, for a listener that receives many calls at once. All servers of
one process share the port; processes may share it, too.

    connections ──(kernel, SO_REUSEPORT)──> server 0 ── accepts one call at a time ──> handlers
                                       └──> server 1 ── accepts one call at a time ──> handlers

A grpc.aio server accepts one call at a time: each costs a wake-up of gRPC's thread and four
iterations of the event loop. Meanwhile the next call waits where no handler can refuse it. With
several servers a burst on one connection delays only the calls of its own server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import grpc

from twolane.rpc.channel_options import door_server_options
from twolane.rpc.listen import join, try_listen
from twolane.rpc.log_rate import LogRate
from twolane.rpc.peer import peer_of
from twolane.rpc.peer_bound import PeerBound

log = logging.getLogger(__name__)

SERVERS = 8
PEERS_S = 0.5  # between looks at how many connections each peer has
_FOREVER_S = 1e6
FEW_CONNECTIONS = 64  # of one server; with fewer, the kernel would spread connections too unevenly


class SharedPort:
    """Servers that together accept about `connections` connections; each server accepts its
    share."""

    def __init__(
        self,
        *,
        message_bytes: int,
        connections: int,
        idle_s: float,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        with_others: bool = False,
    ) -> None:
        """With `with_others`, other processes may listen at the same port."""
        self._with_others = with_others
        n = min(SERVERS, max(1, connections // FEW_CONNECTIONS))
        options = door_server_options(
            message_bytes=message_bytes,
            connections=connections // n,
            idle_s=idle_s,
            shares_port=True,
        )
        self._port = 0
        self._leaving: list[asyncio.Task[None]] = []
        self._servers = [
            grpc.aio.server(options=options, interceptors=interceptors) for _ in range(n)
        ]

    def add_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        for server in self._servers:
            server.add_generic_rpc_handlers(tuple(handlers))

    def bind(
        self,
        host: str,
        port: int,
        credentials: Callable[[], grpc.ServerCredentials] | None = None,
    ) -> int:
        """Bind all servers and return the port. `credentials` makes the credentials of one server;
        without it the port is plain. Raises OSError if the port is in use, even if the kernel would
        let us share it with that process; only with `with_others` may other processes that share
        the port listen there."""
        if port and (why := try_listen(host, port, shares=self._with_others)):
            raise OSError(why)
        for server in self._servers:
            if credentials is None:
                port = server.add_insecure_port(join(host, port))
            else:
                port = server.add_secure_port(join(host, port), credentials())
        self._port = port
        return port

    async def start(self) -> None:
        for server in self._servers:
            await server.start()

    async def bound_peers(self, most: int) -> None:
        """Until cancelled: close the newest connections of each peer (`peer_of`) that has more than
        `most`."""
        bound, log_rate = PeerBound(self._port, most, peer_of), LogRate()
        while True:
            await asyncio.sleep(PEERS_S)
            for peer, n_closed in bound.enforce().items():
                if log_rate.take("peer", time.monotonic()):
                    log.warning(
                        "the gRPC door closed %d connections of %s, which has %d already",
                        n_closed, peer, most,
                    )  # fmt: skip

    async def leave_port(self) -> None:
        """Stop listening, and ask clients for new connections, which reach other processes at the
        port. Running calls continue until `stop`."""
        self._leaving = [asyncio.create_task(server.stop(_FOREVER_S)) for server in self._servers]
        await asyncio.sleep(0)  # each task stops its server in its first step

    async def stop(self, grace_s: float | None) -> None:
        """Stop all servers, as `grpc.aio.Server.stop` does."""
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(server.stop(grace_s))
        await asyncio.gather(*self._leaving)
