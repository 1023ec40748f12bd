"""Dials workers over gRPC."""

from __future__ import annotations

from types import TracebackType

import grpc

from twolane.router.background import Background
from twolane.router.members.session import WorkerLink
from twolane.rpc.link import GrpcLink, LinkBrokenError
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import worker_pb2, worker_pb2_grpc


class GrpcDialer:
    """Uses a new channel for each dial and closes it when its link is over, so that no reconnect
    backoff outlives a worker.

    async with GrpcDialer(credentials) as dialer:
        link = await dialer.dial_worker(address)
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._watchers = Background()

    async def __aenter__(self) -> GrpcDialer:
        await self._watchers.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._watchers.__aexit__(kind, error, trace)

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> WorkerLink:
        try:
            channel = self._credentials.channel(address.endpoint, Role.WORKER)
        except TlsFilesError as error:
            raise LinkBrokenError(str(error)) from error
        metadata = self._credentials.metadata(address.endpoint)
        call = worker_pb2_grpc.WorkerServiceStub(channel).Session(metadata=metadata)
        link: GrpcLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse] = GrpcLink(call)
        self._watchers.start(_close_after(link, channel), name="close-channel")
        return link


async def _close_after(
    link: GrpcLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse],
    channel: grpc.aio.Channel,
) -> None:
    try:
        await link.wait_broken()
    finally:
        link.close()
        await channel.close()
