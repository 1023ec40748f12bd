"""Streams between workers over gRPC."""

from __future__ import annotations

import asyncio

import grpc

from twolane.kvtransfer.send.driver import PeerLink
from twolane.rpc.link import GrpcLink
from twolane.rpc.options import CHANNEL_OPTIONS
from twolane.rpc.secret import shown
from twolane.v1 import transfer_pb2, transfer_pb2_grpc


class PeerDialer:
    """`wire.dial` in production: each stream has its own channel, which closes with it."""

    def __init__(self, secret: str) -> None:
        self._metadata = shown(secret)
        self._closing: set[asyncio.Task[None]] = set()

    async def __call__(self, endpoint: str) -> PeerLink:
        """Open a stream to the TransferService at host:port. Never fails: if the peer is dead, the
        stream breaks."""
        channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        link: GrpcLink[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse]
        link = GrpcLink(stub.Connect(metadata=self._metadata))
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
