"""The streams of a worker that stops."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest

from twolane.rpc.link import LinkBrokenError
from twolane.security.gate import Gate
from twolane.v1 import worker_pb2, worker_pb2_grpc
from twolane.worker.doors.services import Services
from twolane.worker.worker import Worker

LARGE = worker_pb2.SessionResponse(rows=[worker_pb2.RowEvent(message="x" * 1_000_000)])


class Tells:
    """A worker that has much to tell each router, and then waits for commands."""

    async def serve_session(self, link: Any) -> None:
        for _ in range(40):
            link.send(LARGE)
        try:
            await link.receive()
        except LinkBrokenError:
            return


async def test_a_stream_that_comes_while_others_are_finished_is_refused_and_delays_no_end() -> None:
    services = Services(cast(Worker, Tells()), Gate("the port", is_private=True))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(services.handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
            asyncio.timeout(30.0),
        ):
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            first = stub.Session()
            await first.read()
            finishing = asyncio.create_task(services.finish(20.0))
            await asyncio.sleep(0.05)
            assert not finishing.done(), "the first one has not read all"
            late = stub.Session()
            with pytest.raises(grpc.aio.AioRpcError, match="this worker is stopping") as caught:
                await late.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            n_read = 1
            while await first.read() is not grpc.aio.EOF:
                n_read += 1
            assert n_read == 40
            await finishing
    finally:
        await server.stop(None)
