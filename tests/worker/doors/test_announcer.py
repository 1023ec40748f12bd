"""What a worker says of its routers' answers: in its log, and by ending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from twolane.rpc.secret import METADATA_KEY
from twolane.security.credentials import Credentials
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, worker_pb2
from twolane.worker.config import WorkerConfig
from twolane.worker.doors import announcer as announcer_module
from twolane.worker.doors.announcer import Announcer
from twolane.worker.errors import DisplacedError
from twolane.worker.worker import Worker

SECRET = "a secret of sixteen characters".replace(" ", "-")


class Router(cluster_pb2_grpc.MembershipServiceServicer):
    def __init__(self) -> None:
        self.answer: tuple[grpc.StatusCode, str] | None = None
        self.n_heard = 0
        self.shown: set[str] = set()
        self.names: list[worker_pb2.RouterAddress] = []  # other routers

    async def Announce(self, request: Any, context: Any) -> cluster_pb2.AnnounceResponse:
        self.n_heard += 1
        self.shown.add(dict(context.invocation_metadata())[METADATA_KEY])
        if self.answer is not None:
            await context.abort(*self.answer)
        return cluster_pb2.AnnounceResponse(interval_ms=10, routers=self.names)


@asynccontextmanager
async def announcing() -> AsyncIterator[tuple[Router, asyncio.Task[None], Announcer]]:
    router, server = Router(), grpc.aio.server()
    cluster_pb2_grpc.add_MembershipServiceServicer_to_server(router, server)
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    config = WorkerConfig(
        worker_id="w",
        routers=(endpoint,),
        announce_every_s=0.01,
        credentials=Credentials(secret=SECRET),
    )
    announcer = Announcer(cast(Worker, SimpleNamespace(config=config, routers=[])))
    nothing = cluster_pb2.AnnounceRequest()
    announcer.describe = lambda *, leaving=False: nothing  # type: ignore[method-assign]
    task = asyncio.create_task(announcer.run())
    try:
        yield router, task, announcer
    finally:
        task.cancel()
        await asyncio.wait([task])
        await server.stop(None)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not holds():
            await asyncio.sleep(0.005)


async def test_router_that_another_one_names_is_announced_to_and_left_too() -> None:
    other, server = Router(), grpc.aio.server()
    cluster_pb2_grpc.add_MembershipServiceServicer_to_server(other, server)
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with announcing() as (router, _, announcer):
        router.names = [
            worker_pb2.RouterAddress(router_id="other", workers_endpoint=endpoint),
            worker_pb2.RouterAddress(router_id="without a door"),
        ]
        await until(lambda: other.n_heard >= 2)
        await server.stop(None)
        n_heard = router.n_heard
        await until(lambda: router.n_heard > n_heard)
        await announcer.leave()


async def test_every_announce_shows_the_secret() -> None:
    async with announcing() as (router, _, announcer):
        await until(lambda: router.n_heard >= 2)
        await announcer.leave()
    assert router.shown == {SECRET}


async def test_a_refusal_is_an_error_in_the_log_once_and_not_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with announcing() as (router, task, _):
        router.answer = (grpc.StatusCode.ALREADY_EXISTS, "worker w is alive at h:1")
        await until(lambda: router.n_heard >= 5)
        assert not task.done()
        refused = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert len(refused) == 1, "five times in half a second says no more than once"
        assert "worker w is alive at h:1" in refused[0].getMessage()
        router.answer = None
        await until(lambda: "knows this worker" in caplog.text)


async def test_a_worker_that_was_given_up_for_good_ends() -> None:
    async with announcing() as (router, task, _):
        router.answer = (grpc.StatusCode.FAILED_PRECONDITION, "epoch 7 of w was replaced")
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(task, 30.0)
        assert caught.group_contains(DisplacedError, match="epoch 7 of w was replaced")


async def test_a_router_that_stops_first_leaves_no_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcer_module, "_SILENCE_S", 60.0)  # also on a machine that stalls
    caplog.set_level(logging.INFO)
    async with announcing() as (router, task, announcer):
        await until(lambda: router.n_heard >= 1)
        router.answer = (grpc.StatusCode.UNAVAILABLE, "gone")
        n_heard = router.n_heard
        await until(lambda: router.n_heard >= n_heard + 3)
        task.cancel()
        await announcer.leave()
    said = [r.getMessage() for r in caplog.records if r.name == "twolane.worker.doors.announcer"]
    assert [line.partition(" knows")[0].partition(" ")[0] for line in said] == ["router"]
