"""Streams between workers over gRPC."""

from __future__ import annotations

import asyncio

import grpc

from twolane.kvtransfer.send.driver import PeerLink
from twolane.rpc.link import GrpcLink, LinkBrokenError
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.security.tls import TlsFilesError
from twolane.v1 import transfer_pb2, transfer_pb2_grpc


class PeerDialer:
    """`Wiring.dial` in production: each stream has its own channel, which closes with it."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._closing: set[asyncio.Task[None]] = set()

    async def __call__(self, endpoint: str) -> PeerLink:
        """Open a stream to the TransferService at host:port; if the peer is dead, it breaks. Raises
        `LinkBrokenError` if our certificate cannot be read."""
        try:
            channel = self._credentials.channel(endpoint, Role.WORKER)
        except TlsFilesError as error:
            raise LinkBrokenError(str(error)) from error
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        link: GrpcLink[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse]
        link = GrpcLink(stub.Connect(metadata=self._credentials.metadata(endpoint)))
        task = asyncio.create_task(_close_with(link, channel), name="peer-channel")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return link

    async def close(self) -> None:
        """Wait until the channels of all broken links are closed. Close the links first."""
        await asyncio.gather(*self._closing)


async def _close_with(
    link: GrpcLink[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse],
    channel: grpc.aio.Channel,
) -> None:
    await link.wait_broken()
    await channel.close()
