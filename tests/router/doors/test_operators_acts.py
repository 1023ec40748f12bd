"""What holds for every act and look of operators; a method joins by a row."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.pki import FAR, Pki, far_is_far
from tests.router.doors.two_routers import CONFIG, two_routers
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.config import ClientConfig
from twolane.errors import InvalidParameterError, PermissionDeniedError
from twolane.router.testing.served import serve_cluster
from twolane.security.access import GRPC_ROLES
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
WRONG_EPOCH = 12345
# Each is refused, for the worker was started again. A request with an `expect_epoch` belongs here.
WITH_EPOCH: dict[str, Any] = {
    "DrainWorker": cluster_pb2.DrainWorkerRequest(worker_id="d0", expect_epoch=WRONG_EPOCH),
    "WatchDrain": admin_pb2.WatchDrainRequest(worker_id="d0", expect_epoch=WRONG_EPOCH),
    "KillWorker": acts_pb2.KillWorkerRequest(worker_id="d0", expect_epoch=WRONG_EPOCH),
    "FlipWorker": acts_pb2.FlipWorkerRequest(worker_id="d0", expect_epoch=WRONG_EPOCH),
}
BY_CONTROLLER = {"KillWorker": "kill", "FlipWorker": "flip"}  # it looks at the epoch
LOOKS = {name for name in SERVICE.methods_by_name if name.startswith(("Get", "List", "Watch"))}


def test_each_request_with_an_epoch_has_a_row() -> None:
    wanted = {m.name for m in SERVICE.methods if "expect_epoch" in m.input_type.fields_by_name}
    assert wanted == {*WITH_EPOCH}


@pytest.mark.parametrize("method", sorted(WITH_EPOCH.keys() - BY_CONTROLLER.keys()))
async def test_an_act_on_another_incarnation_is_refused(method: str, tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        call = getattr(two.admin, method)(WITH_EPOCH[method])
        assert (await call.code()).name == "FAILED_PRECONDITION"
        assert f"{WRONG_EPOCH:016x}" in await call.details()
        assert two.first.router.operations.member("d0").wish is None


@pytest.mark.parametrize("method", BY_CONTROLLER)
async def test_controller_hears_the_expected_epoch_and_its_refusal_is_told(
    method: str, tmp_path: Path
) -> None:
    async with two_routers(tmp_path) as two:
        mail = two.first.router.operations.controllers
        two.note_controller()
        call = getattr(two.admin, method)(WITH_EPOCH[method])
        async with asyncio.timeout(30):
            while not (acts := mail.acts()):
                await asyncio.sleep(0.01)
        (act,) = acts
        assert act.WhichOneof("what") == BY_CONTROLLER[method]
        assert getattr(act, BY_CONTROLLER[method]).expect_epoch == WRONG_EPOCH
        refused = acts_pb2.ControllerActResult(number=act.number, code=9, error="started again")
        mail.take_in([refused])
        assert (await call.code()).name == "FAILED_PRECONDITION"
        assert await call.details() == "started again"


async def test_a_step_of_a_rollout_that_this_router_does_not_know_is_refused(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:
        two.note_controller()
        call = two.admin.StepRollout(acts_pb2.StepRolloutRequest(step=99))  # type: ignore[arg-type]
        assert (await call.code()).name == "INVALID_ARGUMENT"
        assert "STEP_PAUSE, STEP_RESUME, STEP_UNDO" in await call.details()


def test_each_act_takes_an_id_a_reason_and_a_dry_run() -> None:
    acts = {m.name for m in SERVICE.methods if "act" in m.input_type.fields_by_name}
    others = {*SERVICE.methods_by_name} - acts - LOOKS
    assert others == {"ReadLog", "Diagnose", "OpenConsole"}, "looks"


def test_viewers_look_and_operators_act() -> None:
    for name in SERVICE.methods_by_name:
        roles = GRPC_ROLES[f"/{SERVICE.full_name}/{name}"]
        assert Role.OPERATOR in roles
        assert (Role.VIEWER in roles) == (name in LOOKS or name in ("Diagnose", "OpenConsole"))


async def test_an_operator_of_another_machine_acts_by_its_certificate_and_a_viewer_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_is_far(monkeypatch)
    pki = Pki(tmp_path / "pki")
    config = replace(
        CONFIG,
        bind_host=FAR,
        admin_port=0,
        credentials=Credentials(tls=pki.files("router/router-0")),
    )

    def client(identity: str) -> AdminClient:
        files = pki.files(identity)
        shown = ClientConfig(ca=files.ca, cert=files.cert, key=files.key)
        return AdminClient(server.admin_port_address, config=shown)

    async with serve_cluster("p0", "d0", server_config=config) as (server, _):
        assert server.admin_port_address.startswith(FAR)
        with client("viewer/bob") as viewer, client("operator/anna") as anna:
            shown = await asyncio.to_thread(_shown, server.admin_port_address, pki)
            assert {"p0", "d0"} <= {*shown.split()}
            status = await asyncio.to_thread(viewer.status)
            assert {worker.worker_id for worker in status.workers} == {"p0", "d0"}
            with pytest.raises(PermissionDeniedError, match="viewer/bob may not call DrainWorker"):
                await asyncio.to_thread(viewer.drain, "d0")
            await asyncio.to_thread(anna.drain, "d0")
        events = server.router.operations.events.page(admin_pb2.ListEventsRequest(audit=True))
        assert [event.audit.who for event in events.events] == ["operator/anna"]


def _shown(endpoint: str, pki: Pki) -> str:
    """By `twolane status` at that port."""
    its = pki.files("viewer/bob")
    files = ("--ca", str(its.ca), "--cert", str(its.cert), "--key", str(its.key))
    return CliRunner().invoke(app, ["status", "--endpoint", endpoint, *files]).output


async def test_no_certificate_is_no_operator_of_another_machine() -> None:
    with pytest.raises(InvalidParameterError, match="it must be called with an operator's"):
        AdminClient("10.0.0.5:7210", config=ClientConfig(context=None))


async def test_an_event_of_an_act_has_each_change_from_before_to_after(tmp_path: Path) -> None:
    changes = [
        acts_pb2.Change(subject="pool decode", before="2", after="3"),
        acts_pb2.Change(subject="decode-2", after="starts on node-b"),
    ]
    async with two_routers(tmp_path) as two:
        mail = two.first.router.operations.controllers

        async def control(changes: list[acts_pb2.Change], not_proven: str = "") -> None:
            """As a controller, does the next act."""
            while not (acts := mail.acts()):
                await asyncio.sleep(0.01)
            response = acts_pb2.ActResponse(changes=changes, not_proven=not_proven)
            mail.take_in([acts_pb2.ControllerActResult(number=acts[0].number, response=response)])

        two.note_controller()
        for some in (changes, changes[:1], changes[1:], []):
            controlling = asyncio.create_task(control(some))
            await asyncio.sleep(0)
            await two.admin.ScalePools(acts_pb2.ScalePoolsRequest(pools=[{"pool": "decode"}]))
            await controlling
        named = acts_pb2.Change(subject="decode=0", before="is there", after="goes")
        controlling = asyncio.create_task(control([named, *changes[1:]]))
        await asyncio.sleep(0)
        await two.admin.ScalePools(acts_pb2.ScalePoolsRequest(pools=[{"pool": "decode"}]))
        await controlling
        controlling = asyncio.create_task(control(changes[:1], "node-b is silent"))
        await asyncio.sleep(0)
        await two.admin.ScalePools(acts_pb2.ScalePoolsRequest(pools=[{"pool": "decode"}]))
        await controlling
        found = await two.admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))
        assert [event.text.partition("decode=0: ")[2] for event in found.events] == [
            "pool decode: 2 > 3; decode-2: starts on node-b",
            "2 > 3",
            "starts on node-b",
            "it was so already",
            "is there > goes; decode-2: starts on node-b",
            "2 > 3; not proven: node-b is silent",
        ]


async def test_a_worker_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        call = two.admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="w9"))
        assert await call.details() == "there is no worker 'w9'; there are d0, p0"
