"""The gRPC service for operators and viewers: `AdminService` of proto/twolane/v1/admin.proto.

    Looks     status queries: this router's answer merged with the other routers'
    Cancels   cancels of requests
    Drains    drains of workers
    Logs      logs of processes
    Acts      acts that a controller carries out, or on which all routers agree
    Checks    comparisons of the workers' answers
    Configs   settings, which all routers take or none

Acts go through the `AuditedActs`.

It is a separate server, so that it can require more than file permissions if it is reachable from
other machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from twolane.router.doors.admin.acts import Acts
from twolane.router.doors.admin.audited_acts import AuditedActs
from twolane.router.doors.admin.cancels import Cancels
from twolane.router.doors.admin.check import Checks
from twolane.router.doors.admin.config import Configs
from twolane.router.doors.admin.console import ConsoleAccess
from twolane.router.doors.admin.doctor import Doctor
from twolane.router.doors.admin.drains import Drains
from twolane.router.doors.admin.logs import Logs
from twolane.router.doors.admin.looks import Looks
from twolane.router.doors.admin.own import OwnLooks
from twolane.router.doors.admin.pages import PagesOfWorkers
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.router import Router
from twolane.security.console_tokens import ConsoleTokens
from twolane.security.gate import Gate
from twolane.v1 import admin_pb2, cluster_pb2

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
MAX_SOCKET_PATH_BYTES = 107  # the kernel's limit


class AdminDoor:
    """`look` returns the router's status, its doors' part included, and each request's if its
    argument is True; `peers` calls the other routers, `workers` the workers; `own` answers for this
    router alone; `gate` is the gate of its server; `console` issues tokens for the page at
    `console_url`."""

    def __init__(
        self,
        router: Router,
        look: Callable[[bool], cluster_pb2.GetClusterStatusResponse],
        peers: PeerCalls,
        own: OwnLooks,
        workers: WorkerCalls,
        gate: Gate,
        console: ConsoleTokens,
        console_url: str,
    ) -> None:
        audited = self._audited = AuditedActs(router.operations.events, gate)
        looks = Looks(router, look, peers, own, PagesOfWorkers(router, workers))
        self._parts = (
            looks,
            Cancels(router, peers, looks, audited),
            Drains(router, peers, audited),
            Acts(router, audited),
            Checks(router, workers, audited),
            Configs(router, peers, audited),
            Logs(router, peers, workers, own, audited),
            Doctor(router, look, peers, workers, own),
            ConsoleAccess(console, console_url, gate),
        )

    async def stop(self) -> None:
        """As `AuditedActs.stop`, once no more calls come."""
        await self._audited.stop()

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {name: its for part in self._parts for name, its in part.methods().items()}
        return grpc.method_handlers_generic_handler(ADMIN, methods)


def listen_at(server: grpc.aio.Server, path: str) -> None:
    """Make `server` listen at a unix socket with mode 0600. A socket left by a killed process is
    replaced. Raises OSError, or RuntimeError as gRPC does."""
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise OSError(
            f"the path of a unix socket has at most {MAX_SOCKET_PATH_BYTES} bytes; this has "
            f"{len(path.encode())}: {path}"
        )
    with _owner_only():
        server.add_insecure_port(f"unix:{path}")


@contextmanager
def _owner_only() -> Iterator[None]:
    """A block in which only the user can access files that this process creates."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
