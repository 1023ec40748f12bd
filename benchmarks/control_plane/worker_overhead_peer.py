"""A router and a prefill worker in one process: the other side of
`benchmarks.control_plane.worker_overhead`.

Each row is assigned and reserved at once, its chunks and DONE are sent when it is granted, and when
its answer ends the next one begins.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import sys
from typing import Any

import grpc

from benchmarks.control_plane.worker_overhead import PAGE_TOKENS, PROMPT_TOKENS, TRANSPORT
from twolane.engine.fake import MARK_BYTES
from twolane.engine.prefix import chain_hashes
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.link.handshake import sender_hello
from twolane.params import SamplingParams
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.link import GrpcLink
from twolane.rpc.params import params_to_proto
from twolane.v1 import transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc

_RENEW_EVERY_S = 1.0
_STAGGER_S = 0.03  # rows start one after the other, so that they do not all end at once


class Peer:
    """Keeps `n_rows` answers of up to `answer_tokens` tokens in flight."""

    def __init__(
        self, endpoint: str, epoch: int, answer_tokens: int, fingerprint: str, layout: str
    ) -> None:
        self._epoch = epoch
        self._mine = secrets.randbits(62) + 1
        self._answer_tokens = answer_tokens
        self._fingerprint = fingerprint
        self._layout = layout
        self._numbers = itertools.count(1)
        self._moving: set[Key] = set()  # not committed yet: their leases are renewed
        channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        session: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        lane: Any = transfer_pb2_grpc.TransferServiceStub(channel)
        self._session: GrpcLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
        self._session = GrpcLink(session.Session())
        self._lane: GrpcLink[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse]
        self._lane = GrpcLink(lane.Connect())

    async def run(self, n_rows: int) -> None:
        """Runs until killed."""
        opening = worker_pb2.Open(router_id="router", router_epoch=1, worker_epoch=self._epoch)
        self._session.send(worker_pb2.SessionRequest(open=opening))
        hello = sender_hello("prefill-0", self._mine, self._fingerprint, self._layout, (TRANSPORT,))
        self._lane.send(transfer_pb2.ConnectRequest(hello=hello))
        await self._lane.receive()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear_news())
            tasks.create_task(self._hear_grants())
            tasks.create_task(self._renew())
            for _ in range(n_rows):
                self._begin()
                await asyncio.sleep(_STAGGER_S)

    def _begin(self) -> None:
        number = next(self._numbers)
        key = Key(f"{number:016x}", 1, self._mine, self._epoch)
        tokens = [(number * 7919 + i * 31) % 150_000 for i in range(PROMPT_TOKENS)]
        # Answers end one by one, as in production.
        n_answer = self._answer_tokens if number > 128 else self._answer_tokens * number // 128 + 9
        assign = worker_pb2.Assign(
            key=worker_pb2.AttemptKey(submission_id=key.submission_id, attempt=1),
            row=number,
            token_ids=tokens,
            n_prompt=len(tokens),
            roles=[worker_pb2.ROLE_DECODE],
            sampling=params_to_proto(SamplingParams(max_tokens=n_answer, seed=number)),
            prefill=worker_pb2.WorkerAddress(worker_id="prefill-0", epoch=self._mine),
            decode=worker_pb2.WorkerAddress(worker_id="decode-0", epoch=self._epoch),
            growth_tokens=n_answer,
            time_left_ms=3_600_000,
        )
        self._moving.add(key)
        self._session.send(worker_pb2.SessionRequest(assign=assign))
        hashes = chain_hashes(tokens, PAGE_TOKENS, fingerprint=self._fingerprint)
        reserve = transfer_pb2.Reserve(key=key.proto(), n_tokens=len(tokens), prefix_hashes=hashes)
        self._lane.send(transfer_pb2.ConnectRequest(reserve=reserve))

    async def _hear_news(self) -> None:
        while True:
            response = await self._session.receive()
            for row in response.rows:
                if row.kind == worker_pb2.RowEvent.KIND_FINISHED:
                    self._begin()
                else:
                    assert row.kind == worker_pb2.RowEvent.KIND_JOINED, row

    async def _hear_grants(self) -> None:
        while True:
            response = await self._lane.receive()
            match response.WhichOneof("message"):
                case "reserved":
                    self._send(response.reserved)
                case "commit":
                    self._moving.discard(Key.of(response.commit.ticket.key))

    def _send(self, reserved: transfer_pb2.Reserved) -> None:
        ticket, n_pages = reserved.ticket, len(reserved.pages)
        half = n_pages // 2
        for index, (first, n) in enumerate(((0, half), (half, n_pages - half))):
            chunk = transfer_pb2.Chunk(ticket=ticket, index=index, first_page=first, n_pages=n)
            self._lane.send(transfer_pb2.ConnectRequest(chunk=chunk))
        page_bytes = PAGE_TOKENS * MARK_BYTES
        done = transfer_pb2.Done(
            ticket=ticket, n_chunks=2, n_bytes=n_pages * page_bytes, first_token=1
        )
        self._lane.send(transfer_pb2.ConnectRequest(done=done))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            renew = transfer_pb2.Renew(keys=[key.proto() for key in self._moving])
            self._lane.send(transfer_pb2.ConnectRequest(renew=renew))


def main(args: list[str]) -> None:
    endpoint, epoch, n_rows, answer_tokens, fingerprint, layout = args

    async def run() -> None:
        peer = Peer(endpoint, int(epoch), int(answer_tokens), fingerprint, layout)
        await peer.run(int(n_rows))

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1:])
