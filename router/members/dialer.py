"""Workers reached over gRPC."""

from __future__ import annotations

from types import TracebackType

import grpc

from twolane.router.background import Background
from twolane.router.members.session import WorkerLink
from twolane.rpc.link import GrpcLink
from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.rpc.secret import shown
from twolane.v1 import worker_pb2, worker_pb2_grpc


class GrpcDialer:
    """One fresh channel a dial, closed when its link is over: no backoff outlives a worker.

    async with GrpcDialer(secret) as dialer:
        link = await dialer.dial_worker(address)
    """

    def __init__(self, secret: str) -> None:
        self._metadata = shown(secret)
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
        channel = grpc.aio.insecure_channel(address.endpoint, options=CHANNEL_OPTIONS)
        call = worker_pb2_grpc.WorkerServiceStub(channel).Session(metadata=self._metadata)
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
