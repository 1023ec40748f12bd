"""The door of a check: what it refuses, and what the audit has of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.router.doors.two_routers import Two, two_routers
from twolane.errors import UnavailableError
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.v1 import acts_pb2, admin_pb2


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Two]:
    async with two_routers(folder) as two, asyncio.timeout(60.0):
        while not two.first.router.can_serve():
            await asyncio.sleep(0.01)
        yield two


async def test_a_check_names_each_comparison_and_leaves_one_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that answer nothing alone are told, and are no difference."""

    async def no_room(*_: object) -> None:
        raise UnavailableError("it has just ended")

    monkeypatch.setattr(WorkerCalls, "answer_alone", no_room)
    async with serving(tmp_path) as two:
        act = acts_pb2.Act(reason="a new card")
        told = [its async for its in two.admin.CheckCluster(admin_pb2.CheckClusterRequest(act=act))]
        assert {(its.prefill_worker, its.decode_worker) for its in told} == {
            ("p0", "p0"),
            ("d0", "d0"),
            ("p0", "d0"),
        }
        assert all(its.error and not its.difference for its in told)
        (event,) = (await two.admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))).events
        assert (event.kind, event.audit.reason) == ("act.check", "a new card")
        assert event.audit.after == "0 compared, 0 different, 3 not compared"


async def test_a_dry_run_names_the_comparisons_and_asks_no_worker(tmp_path: Path) -> None:
    async with serving(tmp_path) as two:
        asked = admin_pb2.CheckClusterRequest(act=acts_pb2.Act(dry_run=True), worker_ids=["d0"])
        told = [its async for its in two.admin.CheckCluster(asked)]
        assert [(its.prefill_worker, its.decode_worker) for its in told][-1] == ("p0", "d0")
        assert not any(its.error or its.equal for its in told)
        assert not (await two.admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))).events


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (admin_pb2.CheckClusterRequest(prompts=65), "prompts"),
        (admin_pb2.CheckClusterRequest(max_tokens=-1), "max_tokens"),
        (admin_pb2.CheckClusterRequest(worker_ids=["d7"]), "'d7' is no worker"),
        (admin_pb2.CheckClusterRequest(model="other"), "no worker is alive"),
    ],
)
async def test_a_check_that_cannot_be_is_refused(
    asked: admin_pb2.CheckClusterRequest, why: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as two:
        with pytest.raises(grpc.aio.AioRpcError, match=why):
            async for _ in two.admin.CheckCluster(asked):
                pass
