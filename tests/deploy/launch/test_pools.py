"""Acts that change a cluster, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.deploy.launch.controlled import DRAIN_S, START_S, Controller, World, changes, play
from twolane.deploy.launch.events import Kind
from twolane.v1 import acts_pb2


def test_a_pool_grows_at_once_and_shrinks_only_on_tickets() -> None:
    async def story(world: World, controller: Controller) -> None:
        await controller.scale(decode=3)
        await asyncio.sleep(START_S + 2)
        assert sorted(world.workers) == ["decode-0", "decode-1", "decode-2", "prefill-0"]
        (status,) = [its for its in controller.pools.status() if its.pool == "decode"]
        assert (status.workers, status.alive, status.pinned) == (3, 3, True)
        await controller.scale(decode=1)
        await asyncio.sleep(DRAIN_S - 1)
        assert len(world.workers) == 4  # they drain
        await asyncio.sleep(5)
        assert len(world.workers) == 2
        assert [how for _, how in world.ended] == ["stopped", "stopped"]
        kinds = {event.kind for event in controller.events}
        assert Kind.ENDED in kinds
        assert Kind.DIED not in kinds

    play(story)


def test_a_worker_that_starts_under_the_name_of_one_that_has_drained_is_not_drained() -> None:
    async def story(world: World, controller: Controller) -> None:
        for n in (2, 1, 2):
            await controller.scale(decode=n)
            await asyncio.sleep(DRAIN_S + START_S + 5)
        assert sorted(world.workers) == ["decode-0", "decode-1", "prefill-0"]
        assert not any(its.member.load.HasField("drain") for its in world.workers.values())

    play(story)


def test_a_dry_run_says_all_and_does_nothing() -> None:
    async def story(world: World, controller: Controller) -> None:
        request = acts_pb2.ScalePoolsRequest(
            act=acts_pb2.Act(dry_run=True), pools=[acts_pb2.PoolSize(pool="decode", workers=2)]
        )
        said = changes(await controller.do(scale=request))
        assert said[:2] == ["pool decode: 1 -> 2, pinned", "decode-1:  -> starts on a"]
        await asyncio.sleep(60)
        assert world.n_starts == 2
        assert world.saved is not None
        assert world.saved.pins == ()
        assert len(world.saved.seats) == 2
        assert "would do: pool decode" in controller.events[-1].text
        emptied = acts_pb2.DrainHostRequest(act=acts_pb2.Act(dry_run=True), host="a")
        done = await controller.do(drain_host=emptied)
        assert [its.subject for its in done.response.changes if its.stays] == ["router-0"]

    play(story)


def test_an_act_that_comes_again_under_its_id_is_answered_as_the_first_was() -> None:
    async def story(world: World, controller: Controller) -> None:
        first = await controller.scale("x1", decode=2)
        await controller.scale("x2", decode=3)
        await controller.die()
        after = Controller(world)  # whoever takes over knows it, too
        again = await after.scale("x1", decode=2)
        assert changes(again) == changes(first)
        await asyncio.sleep(START_S + 5)
        assert len(world.workers) == 4
        await after.die()

    play(story)


def test_sizes_that_another_operator_has_changed_meanwhile_are_left_alone() -> None:
    async def story(world: World, controller: Controller) -> None:
        revision = (await controller.scale(decode=2)).response.revision
        await controller.scale(decode=3)
        request = acts_pb2.ScalePoolsRequest(
            pools=[acts_pb2.PoolSize(pool="decode", workers=1)], expect_revision=revision
        )
        result = await controller.do(scale=request)
        assert result.code == 9
        assert result.error == f"sizes are at revision {revision + 1}, not {revision}"
        assert "refused: sizes are at" in controller.events[-1].text

    play(story)


def test_a_worker_that_nobody_has_wanted_is_adopted_and_ends_on_its_ticket() -> None:
    async def story(world: World, controller: Controller) -> None:
        await controller.scale(decode=2)
        await asyncio.sleep(START_S + 2)
        seat = controller.pools.desired.seat("decode-1")
        assert seat is not None
        await controller.die()
        world.saved, world.unknown = None, [seat]
        after = Controller(world)
        await asyncio.sleep(DRAIN_S - 1)
        assert "decode-1" in world.workers
        await asyncio.sleep(5)
        assert world.ended == [("decode-1", "stopped")]
        await after.die()

    play(story)


def test_a_pin_for_a_while_ends_by_itself() -> None:
    async def story(world: World, controller: Controller) -> None:
        request = acts_pb2.ScalePoolsRequest(
            pools=[acts_pb2.PoolSize(pool="decode", workers=2)], for_s=600
        )
        await controller.do(scale=request)
        await asyncio.sleep(590)
        assert "decode-1" in world.workers
        await asyncio.sleep(10 + DRAIN_S + 5)
        assert "decode-1" not in world.workers
        assert controller.pools.desired.pins == ()

    play(story)


def test_a_drained_host_is_empty_in_the_end_and_takes_workers_again_when_it_is_open() -> None:
    async def story(world: World, controller: Controller) -> None:
        host = world.workers["decode-0"].host
        other = {"a": "b", "b": "a"}[host]
        await controller.do(drain_host=acts_pb2.DrainHostRequest(host=host))
        await asyncio.sleep(START_S + 2)
        assert (
            sorted(world.workers)
            == ["decode-0", "decode-1", "prefill-0", "prefill-1"][
                : 3 if world.workers["prefill-0"].host == other else 4
            ]
        )
        await asyncio.sleep(DRAIN_S)
        assert {its.host for its in world.workers.values()} == {other}
        await controller.do(cordon=acts_pb2.CordonHostRequest(host=host, undo=True))
        await controller.scale(prefill=2, decode=3)
        await asyncio.sleep(START_S + 2)
        assert {its.host for its in world.workers.values()} == {host, other}

    play(story)


def test_an_open_host_keeps_those_that_still_drain() -> None:
    async def story(world: World, controller: Controller) -> None:
        await controller.scale(decode=4, prefill=2)  # every seat
        await asyncio.sleep(START_S + 2)
        before = {name: its.handle.epoch for name, its in world.workers.items()}
        await controller.do(drain_host=acts_pb2.DrainHostRequest(host="b"))
        await asyncio.sleep(2)
        await controller.do(cordon=acts_pb2.CordonHostRequest(host="b", undo=True))
        await asyncio.sleep(DRAIN_S + 10)
        assert {name: its.handle.epoch for name, its in world.workers.items()} == before
        assert not any(its.member.load.HasField("drain") for its in world.workers.values())

    play(story)


def test_a_start_that_is_not_wanted_any_more_is_called_off() -> None:
    async def story(world: World, controller: Controller) -> None:
        await controller.scale(decode=3)
        await asyncio.sleep(START_S / 2)
        await controller.scale(decode=1)
        await asyncio.sleep(60)
        assert sorted(world.workers) == ["decode-0", "prefill-0"]
        assert world.ended == []

    play(story)


@pytest.mark.parametrize("seed", range(8))
def test_controllers_that_die_half_way_end_where_one_alone_would(seed: int) -> None:
    chance = random.Random(seed)

    async def story(world: World, controller: Controller) -> None:
        for _ in range(12):
            await controller.scale(prefill=chance.randrange(1, 4), decode=chance.randrange(1, 4))
            if chance.random() < 0.3:
                host = chance.choice("ab")
                await controller.do(drain_host=acts_pb2.DrainHostRequest(host=host))
            if chance.random() < 0.6:
                for host in "ab":
                    await controller.do(cordon=acts_pb2.CordonHostRequest(host=host, undo=True))
            await asyncio.sleep(chance.random() * 30)
            await controller.die()
            await asyncio.sleep(chance.random() * 10)
            controller = Controller(world)
        for host in "ab":
            await controller.do(cordon=acts_pb2.CordonHostRequest(host=host, undo=True))
        await controller.scale(prefill=2, decode=3)
        await asyncio.sleep(5 * (START_S + DRAIN_S))
        pools = [name.rpartition("-")[0] for name in world.workers]
        assert (pools.count("prefill"), pools.count("decode")) == (2, 3)
        assert not any(its.member.load.HasField("drain") for its in world.workers.values())
        await controller.die()

    play(story)


def test_act_that_fails_by_our_own_fault_is_answered_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World, controller: Controller) -> None:
        async def breaks(name: str, epoch: int) -> str:
            raise OSError("disk on fire")

        monkeypatch.setattr(controller.acts, "_fence_worker", breaks)
        fence = acts_pb2.KillWorkerRequest(worker_id="decode-0", may_restart=True)
        result = await controller.do(kill=fence)
        assert (result.number, result.code) == (1, 13)
        assert result.error == "OSError: disk on fire"
        assert "kill of anna" in caplog.text
        assert "in breaks" in caplog.text, "the traceback"

    play(story)


def test_settings_are_kept_for_the_routers_of_the_next_controller() -> None:
    def kept(revision: int, **values: str) -> acts_pb2.ControllerAct:
        request = acts_pb2.KeepConfigRequest(revision=revision, values=values)
        return acts_pb2.ControllerAct(who="operator/anna", keep_config=request)

    async def story(world: World, controller: Controller) -> None:
        assert changes(await controller.acts.do(kept(1, log_level='"debug"'))) == [
            'log_level:  -> "debug"'
        ]
        refused = await controller.acts.do(kept(1, log_level='"info"'))
        assert "the configuration is at revision 1, not 0" in refused.error
        await controller.die()
        successor = Controller(world)
        told = successor.pools.config()
        assert (told.revision, dict(told.values)) == (1, {"log_level": '"debug"'})
        await asyncio.sleep(START_S)
        await successor.die()

    play(story)
