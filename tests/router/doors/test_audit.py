"""Every method that only operators may call leaves an event that says who called it, also where it
is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.doors.two_routers import Two, two_routers
from twolane.rpc.log_tail import LogTail
from twolane.security.access import GRPC_ROLES
from twolane.security.identity import Role
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
FOR_OPERATORS = {
    method
    for method, roles in GRPC_ROLES.items()
    if Role.OPERATOR in roles and not {Role.VIEWER, Role.CLIENT} & roles
}
# A request for each, and the kind of its event. Without a controller, what it carries out is
# refused.
AUDITED: dict[str, tuple[Any, str]] = {
    "ReadLog": (acts_pb2.ReadLogRequest(name="router-0"), "act.read-log"),
    "CancelRequest": (admin_pb2.CancelRequestRequest(submission_id="s"), "act.cancel"),
    "DrainWorker": (cluster_pb2.DrainWorkerRequest(worker_id="d0"), "act.drain"),
    "CheckCluster": (admin_pb2.CheckClusterRequest(model="another"), "act.check"),
    "KillWorker": (acts_pb2.KillWorkerRequest(worker_id="d0"), "act.kill"),
    "CordonHost": (acts_pb2.CordonHostRequest(host="a"), "act.cordon"),
    "DrainHost": (acts_pb2.DrainHostRequest(host="a"), "act.drain-node"),
    "ScalePools": (acts_pb2.ScalePoolsRequest(pools=[{"pool": "decode"}]), "act.scale"),
    "FlipWorker": (acts_pb2.FlipWorkerRequest(worker_id="d0"), "act.flip"),
    "SetScaler": (acts_pb2.SetScalerRequest(mode="paused"), "act.scaler"),
    "StartRollout": (acts_pb2.StartRolloutRequest(model_dir="/m"), "act.rollout"),
    "StepRollout": (acts_pb2.StepRolloutRequest(step="STEP_UNDO"), "act.rollout"),
    "SetConfig": (admin_pb2.SetConfigRequest(values={"a": "1"}), "act.config-set"),
    "ReloadConfig": (admin_pb2.ReloadConfigRequest(), "act.config-reload"),
}
# Elsewhere than in a router's events:
BESIDE_ROUTERS = {
    "/twolane.v1.ControllerService/FenceWorker": "an event of the launcher, in its log",
    "/twolane.v1.ControllerService/SayHostOff": "an event of the launcher, in its log",
    "/twolane.v1.ControllerService/StopCluster": "an event of the launcher, in its log",
    "/twolane.v1.AgentService/Fence": "a line of the agent's log: it knows no routers",
    "/twolane.v1.AgentService/ReadHostLog": "a line of the agent's log: it knows no routers",
}
WITHOUT_CONTENT = {
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "it tells of proto/ alone",
}


def test_each_method_for_operators_alone_is_audited_or_named_with_its_reason() -> None:
    ours = {f"/{ADMIN.full_name}/{name}" for name in AUDITED}
    assert ours | BESIDE_ROUTERS.keys() | WITHOUT_CONTENT.keys() >= FOR_OPERATORS
    assert ours | BESIDE_ROUTERS.keys() <= FOR_OPERATORS


async def audit(two: Two) -> list[cluster_pb2.ClusterEvent]:
    asked = admin_pb2.ListEventsRequest(audit=True)
    return list((await two.admin.ListEvents(asked)).events)


async def call(two: Two, name: str, request: Any) -> None:
    """Whatever comes of it."""
    calling = getattr(two.admin, name)(request)
    try:
        if isinstance(calling, grpc.aio.UnaryStreamCall):
            async for _ in calling:
                pass
        else:
            await calling
    except grpc.aio.AioRpcError:
        pass


async def test_each_call_says_who_did_what_also_where_it_is_refused(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        for n, (name, (request, kind)) in enumerate(AUDITED.items(), 1):
            await call(two, name, request)
            events = await audit(two)
            assert len(events) == n, name
            assert events[-1].kind == kind
            assert events[-1].audit.who == "operator"


async def test_following_a_log_is_one_event_and_reading_it_again_another(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        asked = acts_pb2.ReadLogRequest(name="router-1", lines=5)
        answer = await two.admin.ReadLog(asked)
        for _ in range(3):
            asked.after_line, asked.source = answer.last_line, answer.source
            answer = await two.admin.ReadLog(asked)
        (event,) = await audit(two)
        assert event.text.startswith("operator: read-log router-1: ")
        assert f"lines of {answer.source}" in event.audit.after
        other = acts_pb2.ReadLogRequest(name="router-0", after_line=1, source="router-0 1")
        await two.admin.ReadLog(other)  # it did not begin with what is noted
        await two.admin.ReadLog(acts_pb2.ReadLogRequest(name="router-1"))
        assert [event.subject for event in await audit(two)] == [
            "router-1", "router-0", "router-1",
        ]  # fmt: skip


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """Whose lines are in the log of both routers: there are ten."""
    tail, log = LogTail(), logging.getLogger("twolane.test")
    log.addHandler(tail)
    log.propagate = False
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("twolane.router.doors.admin.own.LOG_TAIL", tail)
        for n in range(10):
            log.warning("line %d", n)
        yield log
    log.propagate = True
    log.removeHandler(tail)


@pytest.mark.parametrize(
    ("after_line", "is_audited"), [(10, False), (9, False), (8, False), (7, True), (0, True)]
)
async def test_lines_before_those_whose_reading_is_audited_are_audited_too(
    after_line: int, is_audited: bool, tmp_path: Path, log: logging.Logger
) -> None:
    async with two_routers(tmp_path) as two:
        found = await two.admin.ReadLog(acts_pb2.ReadLogRequest(name="router-0", lines=2))
        assert (len(found.lines), found.last_line) == (2, 10)
        asked = acts_pb2.ReadLogRequest(
            name="router-0", lines=2000, after_line=after_line, source=found.source
        )
        await two.admin.ReadLog(asked)
        assert len(await audit(two)) == 1 + is_audited
        asked.after_line = 8
        await two.admin.ReadLog(asked)
        assert len(await audit(two)) == 1 + is_audited, "who follows it elsewhere goes on"


async def test_a_log_that_begins_anew_is_audited_anew(tmp_path: Path, log: logging.Logger) -> None:
    async with two_routers(tmp_path) as two:
        found = await two.admin.ReadLog(acts_pb2.ReadLogRequest(name="router-0"))
        asked = acts_pb2.ReadLogRequest(
            name="router-0", after_line=found.last_line + 1, source=found.source
        )
        await two.admin.ReadLog(asked)  # it is shorter than it was
        assert len(await audit(two)) == 2
        asked.after_line = found.last_line
        two.first.router.address.router_epoch = 77
        again = await two.admin.ReadLog(asked)  # the process is another one
        assert len(again.lines) == 10
        assert len(await audit(two)) == 3


async def test_not_more_than_so_many_readers_are_remembered(
    tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.router.doors.admin.logs.MOST_NOTED", 1)
    async with two_routers(tmp_path) as two:
        for n, name in enumerate(("router-0", "router-1", "router-0"), 1):
            found = await two.admin.ReadLog(acts_pb2.ReadLogRequest(name=name))
            asked = acts_pb2.ReadLogRequest(
                name=name, after_line=found.last_line, source=found.source
            )
            await two.admin.ReadLog(asked)
            assert len(await audit(two)) == n
        asked.name, asked.source = "router-1", asked.source.replace("router-0", "router-1")
        await two.admin.ReadLog(asked)
        assert len(await audit(two)) == 4
