"""Several gRPC servers of one process on one port, for a listener that many calls reach at once.

    connections ──(kernel, SO_REUSEPORT)──> server 0 ── takes a call, then the next ──> handlers
                                       └──> server 1 ── takes a call, then the next ──> handlers

A grpc.aio server accepts one call at a time: each costs a wake-up of gRPC's thread and four
iterations of the event loop. Until then the next call waits where no handler can refuse it. With
several servers a burst on one connection delays only the calls of its own server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc

from twolane.rpc.listen import join, try_listen
from twolane.rpc.options import door_server_options

SERVERS = 8
FEW_CONNECTIONS = 64  # a server's own; with fewer, how the kernel spreads them would show


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
    ) -> None:
        n = min(SERVERS, max(1, connections // FEW_CONNECTIONS))
        options = door_server_options(
            message_bytes=message_bytes,
            connections=connections // n,
            idle_s=idle_s,
            shares_port=True,
        )
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
        without it the port is plain. Raises OSError if the port is in use, even by a process with
        which the kernel would share it."""
        if port and (why := try_listen(host, port)):
            raise OSError(why)
        for server in self._servers:
            if credentials is None:
                port = server.add_insecure_port(join(host, port))
            else:
                port = server.add_secure_port(join(host, port), credentials())
        return port

    async def start(self) -> None:
        for server in self._servers:
            await server.start()

    async def stop(self, grace_s: float | None) -> None:
        """Stop all servers, as `grpc.aio.Server.stop` does."""
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(server.stop(grace_s))
