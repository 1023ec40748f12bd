"""A change of settings holds at all routers or at none, and the audit has it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.router.doors.two_routers import Two, two_routers
from tests.router.operators.written_options import Written
from twolane.router.doors.peer_calls import PeerCalls
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2, worker_pb2


def give_options(two: Two) -> tuple[Written, Written]:
    first, second = Written(), Written()
    two.first.router.operations.configuration.options = first
    two.second.router.operations.configuration.options = second
    return first, second


BUDGET = cluster_pb2.ConfigField(name="scaler.budget", value="6", live=True)


def hear_controller(two: Two, *controllers: cluster_pb2.ConfigField) -> None:
    """Both routers hear one, with its own settings."""
    config = cluster_pb2.ConfigState(controllers=controllers)
    told = cluster_pb2.SuperviseRequest(controller_id="c", term=1, config=config)
    for server in (two.first, two.second):
        server.router.operations.supervise(told)
    two.note_controller()


async def keep(two: Two, **result: Any) -> acts_pb2.KeepConfigRequest:
    """As a controller, answer what the first router asks next."""
    mail = two.first.router.operations.controllers
    async with asyncio.timeout(30):
        while not (acts := mail.acts()):
            await asyncio.sleep(0.005)
    mail.take_in([acts_pb2.ControllerActResult(number=acts[0].number, **result)])
    return acts[0].keep_config


def setting(**fields: Any) -> admin_pb2.SetConfigRequest:
    fields = {"values": {"other": "7"}, **fields}
    return admin_pb2.SetConfigRequest(**fields)


async def test_a_change_holds_at_both_routers_and_is_audited_and_undone(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        act = acts_pb2.Act(reason="a burst")
        done = await two.admin.SetConfig(setting(act=act))
        assert first.held == second.held == {"other": "7"}
        assert [(its.subject, its.before, its.after) for its in done.changes] == [
            ("other", "0", "7")
        ]
        assert done.revision == 1
        (event,) = (await two.admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))).events
        assert (event.kind, event.audit.before, event.audit.after) == ("act.config-set", "0", "7")
        assert event.audit.reason == "a burst"
        await two.admin.SetConfig(setting(values={"other": "0"}, expect_revision=1))
        assert first.held == second.held == {"other": "0"}


async def test_an_event_names_each_setting_once_and_what_is_read_again(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        give_options(two)
        await two.admin.SetConfig(setting(values={"other": "7", "limits.a": "4"}))
        await two.admin.SetConfig(setting(values={"limits.a": "4", "other": "8"}))
        await two.admin.SetConfig(setting(values={"other": "9"}))
        await two.admin.ReloadConfig(admin_pb2.ReloadConfigRequest())
        events = (await two.admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))).events
        assert [event.text.removeprefix("operator: ") for event in events] == [
            "config-set limits.a: 0 > 4; other: 0 > 7",
            "config-set other: 7 > 8",
            "config-set other: 8 > 9",
            "config-reload API keys: read again, where they changed",
        ]


async def test_where_one_router_cannot_none_does(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        second.refused = "other"
        with pytest.raises(grpc.aio.AioRpcError, match=r"nothing has changed.*router-1: .*other"):
            await two.admin.SetConfig(setting())
        assert first.held == second.held == {}
        second.refused = ""
        await two.admin.SetConfig(setting())  # nothing is left of the first
        assert first.held == second.held == {"other": "7"}


async def test_where_one_router_does_not_answer_none_changes(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        two.introduce(worker_pb2.RouterAddress(router_id="lost", workers_endpoint="127.0.0.1:1"))
        with pytest.raises(grpc.aio.AioRpcError, match=r"nothing has changed.*lost: "):
            await two.admin.SetConfig(setting())
        assert first.held == second.held == {}


async def test_a_dry_run_asks_all_and_changes_nothing(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        done = await two.admin.SetConfig(setting(act=acts_pb2.Act(dry_run=True)))
        assert done.dry_run
        assert done.changes[0].after == "7"
        assert first.held == second.held == {}
        await two.admin.SetConfig(setting())
        assert second.held == {"other": "7"}


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (setting(expect_revision=4), "at revision 0, not 4"),
        (admin_pb2.SetConfigRequest(), "name 1 to 100"),
        (setting(values={"bad": "1"}), "no setting 'bad'"),
    ],
)
async def test_a_change_that_cannot_be_is_refused(
    request_: admin_pb2.SetConfigRequest, why: str, tmp_path: Path
) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        with pytest.raises(grpc.aio.AioRpcError, match=why):
            await two.admin.SetConfig(request_)
        assert first.held == second.held == {}


async def test_routers_that_differ_are_told_by_setting(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        _, second = give_options(two)
        await two.admin.SetConfig(setting())
        second.fields_as = {"limits.a": "3"}
        found = await two.admin.GetConfig(admin_pb2.GetConfigRequest(names=["limits"]))
        assert {its.name: dict(its.differs) for its in found.fields} == {
            "limits.a": {"router-1": "3"},
            "limits.b": {},
        }
        assert found.revision == 1


async def test_a_reload_is_of_all_or_none(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        await two.admin.ReloadConfig(admin_pb2.ReloadConfigRequest())
        assert first.reloads == second.reloads == 1
        second.refused = "keys.yaml"
        with pytest.raises(grpc.aio.AioRpcError, match=r"router-1: .*keys.yaml"):
            await two.admin.ReloadConfig(admin_pb2.ReloadConfigRequest())
        assert first.reloads == second.reloads == 1


async def test_the_controllers_own_settings_are_set_by_it_and_by_no_router(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        hear_controller(two, BUDGET)
        values = {"scaler.budget": "3", "other": "7"}
        setting_it = asyncio.ensure_future(two.admin.SetConfig(setting(values=values)))
        change = acts_pb2.Change(subject="workers", before="hold 4", after="drain")
        own = acts_pb2.Change(subject="scaler.budget", after="3")
        response = acts_pb2.ActResponse(changes=[own, change])
        asked = await keep(two, response=response)
        assert (dict(asked.values), asked.revision) == (values, 1)
        done = await setting_it
        assert sorted((its.subject, its.before, its.after) for its in done.changes) == [
            ("other", "0", "7"), ("scaler.budget", "6", "3"), ("workers", "hold 4", "drain"),
        ]  # fmt: skip
        assert first.held == second.held == {"other": "7"}
        (event,) = (await two.admin.ListEvents(admin_pb2.ListEventsRequest(audit=True))).events
        assert "scaler.budget: 6 > 3" in event.text


@pytest.mark.parametrize(
    ("code", "name"), [(3, "INVALID_ARGUMENT"), (9, "FAILED_PRECONDITION"), (13, "UNAVAILABLE")]
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_the_controller_refuses_changes_nothing_anywhere(
    code: int, name: str, *, dry_run: bool, tmp_path: Path
) -> None:
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        hear_controller(two, BUDGET)
        act = acts_pb2.Act(dry_run=dry_run)
        values = {"scaler.budget": "0", "other": "7"}
        call = two.admin.SetConfig(setting(values=values, act=act))
        asked = await keep(two, code=code, error="scaler.budget is 0")
        assert asked.act.dry_run == dry_run
        assert (await call.code()).name == name
        assert "scaler.budget is 0" in await call.details()
        assert first.held == second.held == {}
        assert two.first.router.operations.configuration.revision == 0
        ready = asyncio.ensure_future(two.admin.SetConfig(setting()))  # nothing is left of it
        await keep(two)
        await ready


async def test_without_a_controller_its_own_settings_cannot_be_set(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        give_options(two)
        hear_controller(two, BUDGET)
        mail = two.first.router.operations.controllers
        mail.note("c", 1, -1e9)  # long ago
        with pytest.raises(grpc.aio.AioRpcError, match="no controller is there") as refused:
            await two.admin.SetConfig(setting(values={"scaler.budget": "3"}))
        assert refused.value.code().name == "UNAVAILABLE"
        await two.admin.SetConfig(setting())


async def test_routers_show_the_controllers_settings_and_never_differ_in_them(
    tmp_path: Path,
) -> None:
    async with two_routers(tmp_path) as two:
        give_options(two)
        hear_controller(two, BUDGET)
        config = cluster_pb2.ConfigState(
            controllers=[cluster_pb2.ConfigField(name="scaler.budget", value="3", live=True)]
        )
        later = cluster_pb2.SuperviseRequest(controller_id="c", term=1, config=config)
        two.second.router.operations.supervise(later)
        found = await two.admin.GetConfig(admin_pb2.GetConfigRequest(names=["scaler"]))
        assert [(its.value, dict(its.differs)) for its in found.fields] == [("6", {})]


async def test_it_is_said_until_a_controller_has_told_of_its_settings(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as two:
        asked = admin_pb2.GetConfigRequest()
        assert (await two.admin.GetConfig(asked)).without_controllers
        hear_controller(two)  # of an older version, which tells of none
        assert (await two.admin.GetConfig(asked)).without_controllers
        hear_controller(two, BUDGET)
        assert not (await two.admin.GetConfig(asked)).without_controllers


def tell_kept(two: Two, revision: int, **values: str) -> None:
    """As a controller, with its next call to both routers."""
    config = cluster_pb2.ConfigState(revision=revision, values=values)
    told = cluster_pb2.SuperviseRequest(controller_id="c", term=1, config=config)
    for server in (two.first, two.second):
        server.router.operations.supervise(told)
    two.note_controller()


async def test_what_a_controller_keeps_that_answers_late_holds_as_it_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.router.doors.admin.config.KEPT_WITHIN_S", 0.05)
    async with two_routers(tmp_path) as two:
        first, second = give_options(two)
        hear_controller(two)
        with pytest.raises(grpc.aio.AioRpcError, match="it may still make the change"):
            await two.admin.ReloadConfig(admin_pb2.ReloadConfigRequest())
        assert first.reloads == second.reloads == 0
        tell_kept(two, 1)
        assert first.reloads == second.reloads == 1
        dry = acts_pb2.Act(dry_run=True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await two.admin.SetConfig(setting(act=dry))
        assert caught.value.details() == "the controller has not answered in 0.05 s"
        mail = two.first.router.operations.controllers
        mail.note("c", 1, -1e9)  # there is none any more
        await two.admin.SetConfig(setting())  # nothing is ready of the dry run


async def test_a_change_that_ends_with_its_router_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_routers(tmp_path) as two:
        give_options(two)
        calling: asyncio.Future[asyncio.Task[Any] | None]
        calling = asyncio.get_running_loop().create_future()

        async def hang(peers: PeerCalls, request: cluster_pb2.PrepareConfigRequest) -> list[str]:
            calling.set_result(asyncio.current_task())
            await asyncio.Event().wait()
            return []

        with monkeypatch.context() as patched:
            patched.setattr(PeerCalls, "prepare_config", hang)
            call = two.admin.SetConfig(setting())
            async with asyncio.timeout(30):
                work = await calling
            assert work is not None
            work.cancel()
            await asyncio.wait([work], timeout=30)
            call.cancel()
        await two.admin.SetConfig(setting())
