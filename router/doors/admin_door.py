"""The gRPC service for operators and the launcher, at a unix socket that is its user's alone.

Who comes in here sees all and moves workers. It is a server of its own, so that it can ask for
more than a file's rights where it is to be reached from elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from twolane.errors import InvalidRequestError
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.router import Router
from twolane.rpc.call_gate import Context
from twolane.rpc.handlers import unary
from twolane.v1 import cluster_pb2

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
        }
        return grpc.method_handlers_generic_handler(ADMIN, methods)

    async def _get_status(
        self, request: cluster_pb2.GetClusterStatusRequest, context: Context
    ) -> cluster_pb2.GetClusterStatusResponse:
        return await self._peers.whole_status(self._look())

    async def _drain_worker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        """At all routers: a worker gets nothing new from any."""
        is_known_elsewhere = await self._peers.drain(request)
        try:
            self._router.drain(request.worker_id, undo=request.undo)
        except InvalidRequestError:
            if not is_known_elsewhere:
                raise
        return cluster_pb2.DrainWorkerResponse()


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
