"""The door of a check: what it refuses, and what the audit has of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.doors.two_routers import CONFIG, HEARD_S, Two, two_routers
from twolane.errors import UnavailableError
from twolane.router.config import MembershipConfig, RouterConfig
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.members.member import MemberState
from twolane.router.testing.served import SETTLED, serve_cluster
from twolane.v1 import acts_pb2, admin_pb2, admin_pb2_grpc

LONG_SILENT: MembershipConfig = dataclasses.replace(
    SETTLED, suspicion_s=HEARD_S, gone_after_s=3600.0
)


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


@asynccontextmanager
async def with_one_silent_and_one_draining(folder: Path, draining: str = "") -> AsyncIterator[Any]:
    """The operators' service of a router: d1 is silent, and d2 drains, whose fingerprint is
    `draining` if that is one."""
    config = dataclasses.replace(CONFIG, admin_socket=str(folder / "admin.sock"))
    async with (
        serve_cluster(
            *("p0", "d0", "d1", "d2"),
            config=RouterConfig(membership=LONG_SILENT),
            server_config=config,
        ) as (server, cluster),
        grpc.aio.insecure_channel(server.admin_address) as channel,
        asyncio.timeout(60.0),
    ):
        operations = server.router.operations

        async def until(**wanted: MemberState) -> None:
            while any(
                {its.worker_id: its.state for its in operations.members()}.get(name) is not state
                for name, state in wanted.items()
            ):
                await asyncio.sleep(0.01)

        await until(**dict.fromkeys(("p0", "d0", "d1", "d2"), MemberState.ALIVE))
        cluster.workers["d1"].kill()
        operations.drain("d2")
        await until(d1=MemberState.SUSPECT, d2=MemberState.DRAINING)
        its = cluster.workers["d2"]
        its.fingerprint = draining or its.fingerprint
        while (
            next(m.announce.fingerprint for m in operations.members() if m.worker_id == "d2")
            != its.fingerprint
        ):
            await asyncio.sleep(0.01)
        yield admin_pb2_grpc.AdminServiceStub(channel)


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        ([], [("d1", "it is suspect"), ("d2", "it is draining")]),
        (["p0"], [("d1", "it is suspect"), ("d2", "it is draining")]),
        (["d0"], []),  # no pair of it has one of them
    ],
)
@pytest.mark.parametrize("is_dry", [False, True])
async def test_a_worker_that_takes_no_work_is_told_as_not_compared(
    names: list[str],
    left_out: list[tuple[str, str]],
    is_dry: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_room(*_: object) -> None:
        raise UnavailableError("it has just ended")

    monkeypatch.setattr(WorkerCalls, "answer_alone", no_room)
    async with with_one_silent_and_one_draining(tmp_path) as admin:
        act = acts_pb2.Act(dry_run=is_dry)
        asked = admin_pb2.CheckClusterRequest(act=act, worker_ids=names)
        told = [its async for its in admin.CheckCluster(asked)]
        n = len(left_out)
        assert [(its.decode_worker, its.error) for its in told[:n]] == left_out
        assert all(its.prefill_worker == its.decode_worker for its in told[:n])
        assert [(its.prefill_worker, its.decode_worker) for its in told[n:]] == [
            ("p0", "p0"),
            ("d0", "d0"),
            ("p0", "d0"),
        ]
        if is_dry:
            return
        (event,) = (await admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))).events
        counted = "0 compared, 0 different, 3 not compared"
        assert event.audit.after == counted + "; left out: d1, d2" * bool(n)


@pytest.mark.parametrize("names", [[], ["p0"]])
async def test_a_worker_of_another_revision_is_not_missed(names: list[str], tmp_path: Path) -> None:
    async with with_one_silent_and_one_draining(tmp_path, draining="older") as admin:
        act = acts_pb2.Act(dry_run=True)
        asked = admin_pb2.CheckClusterRequest(act=act, worker_ids=names)
        told = [its async for its in admin.CheckCluster(asked)]
        assert [its.decode_worker for its in told if its.error] == ["d1"]


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
