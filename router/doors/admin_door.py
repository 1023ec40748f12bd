"""The gRPC service for operators and the launcher, at a unix socket that is its user's alone.

Who comes in here sees all and moves workers. It is a server of its own, so that it can ask for
more than a file's rights where it is to be reached from elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from twolane.errors import PreconditionError, UnavailableError
from twolane.router.dispatch.drain_check import check_epoch, check_ticket
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.members.member import MemberState
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary, unary_stream
from twolane.v1 import cluster_pb2

_LOOK_EVERY_S = 0.05
_CONFIRMED_WITHIN_S = 5.0
ADMIN = "twolane.v1.AdminService"
MAX_SOCKET_PATH_BYTES = 107  # what the kernel takes


class AdminDoor:
    """`look` is the router's status with what its doors know; `peers` asks the other routers."""

    def __init__(
        self,
        router: Router,
        look: Callable[[], cluster_pb2.GetClusterStatusResponse],
        peers: PeerCalls,
    ) -> None:
        self._router = router
        self._look = look
        self._peers = peers

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            "GetClusterStatus": unary(cluster_pb2.GetClusterStatusRequest, self._get_status),
            "DrainWorker": unary(cluster_pb2.DrainWorkerRequest, self._drain_worker),
            "WatchDrain": unary_stream(cluster_pb2.WatchDrainRequest, self._watch_drain),
        }
        return grpc.method_handlers_generic_handler(ADMIN, methods)

    async def _get_status(
        self, request: cluster_pb2.GetClusterStatusRequest, context: Context
    ) -> cluster_pb2.GetClusterStatusResponse:
        return await self._peers.whole_status(self._look())

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        name = request.worker_id
        check_epoch(self._router.member(name), request.expect_epoch)
        if request.take_ticket:
            await self._take_ticket(name, request.take_ticket)
        else:
            self._router.drain(name, undo=request.undo, hand_over=request.hand_over)
            if request.undo:  # workers tell all routers that they drain; who wanted it, wants it on
                await self._peers.drain(request)
        return cluster_pb2.DrainWorkerResponse()

    async def _take_ticket(self, worker_id: str, ticket: int) -> None:
        """Returns when the worker has confirmed it: a drain that others undo at the same time may
        have come first."""
        member = self._router.member(worker_id)
        self._router.take_ticket(worker_id, ticket)
        try:
            async with asyncio.timeout(_CONFIRMED_WITHIN_S):
                while not member.load.drain.is_taken:
                    check_ticket(member, ticket)
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            raise UnavailableError(f"{worker_id} has not confirmed it") from None

    async def _watch_drain(self, request: cluster_pb2.WatchDrainRequest, context: Context) -> None:
        member = self._router.member(request.worker_id)
        check_epoch(member, request.expect_epoch)
        told: cluster_pb2.WatchDrainResponse | None = None
        while True:
            if not (member.is_to_drain or member.load.draining):
                raise PreconditionError(f"{member.worker_id} does not drain")
            news = cluster_pb2.WatchDrainResponse(
                worker=member.announce.worker,
                state=member.state.name.lower(),
                drain=member.load.drain if member.load.HasField("drain") else None,
            )
            if news != told:
                await context.write(news)
                told = news
            if news.drain.has_ticket or member.state is MemberState.GONE:
                return
            await asyncio.sleep(_LOOK_EVERY_S)


def listen_at(server: grpc.aio.Server, path: str) -> None:
    """Have `server` listen at a unix socket with rights 0600. What is left there of a process that
    was killed is replaced. Raises OSError, or RuntimeError as gRPC does."""
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise OSError(
            f"the path of a unix socket has at most {MAX_SOCKET_PATH_BYTES} bytes; this has "
            f"{len(path.encode())}: {path}"
        )
    with _owner_only():
        server.add_insecure_port(f"unix:{path}")


@contextmanager
def _owner_only() -> Iterator[None]:
    """Files that this process makes meanwhile are its user's alone."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
