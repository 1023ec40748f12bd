"""Rollouts of a cluster on two hosts, in virtual time: the controller dies, a host is silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.deploy.launch.controlled import (
    CLUSTER,
    DRAIN_S,
    FINGERPRINT,
    START_S,
    Controller,
    World,
    changes,
    play,
)
from twolane.deploy.controller.reconcile import Phase
from twolane.deploy.errors import StartError
from twolane.deploy.launch.supervisor import Supervisor
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.revision import Fit
from twolane.deploy.spec.specs import WorkerSpec
from twolane.v1 import acts_pb2

NEW = "/models/new"
STEP = acts_pb2.StepRolloutRequest
LONG_S = 4 * (DRAIN_S + START_S + 10)
Story = Callable[[World, Controller], Awaitable[None]]


async def begin(controller: Controller, request_id: str = "") -> list[str]:
    act = acts_pb2.Act(request_id=request_id)
    asked = acts_pb2.StartRolloutRequest(act=act, model_dir=NEW)
    return changes(await controller.do(start_rollout=asked))


async def two_of_each(controller: Controller) -> None:
    await controller.scale(prefill=2, decode=2)
    await asyncio.sleep(START_S + 2)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"model_dir": ""}, "name the directory"),
        ({"model_dir": NEW, "canary_share": 1.5}, "a share between 0 and 1"),
        ({"model_dir": NEW}, "extra workers"),  # one of each, and no room beside them
    ],
)
def test_hosts_read_no_disk_for_what_is_refused_anyway(asked: dict[str, Any], why: str) -> None:
    async def story(world: World, controller: Controller) -> None:
        request = acts_pb2.StartRolloutRequest(**asked)
        assert why in (await controller.do(start_rollout=request)).error
        assert controller.read_dirs == []
        assert why in controller.events[-1].text, "it is audited"

    play(story)


def test_hosts_read_their_disks_once_for_one_rollout() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        for request_id in ("r-1", "r-1", "r-2"):  # the last one is under way already
            await begin(controller, request_id)
        assert controller.read_dirs == [NEW]

    play(story)


def test_hosts_that_were_not_asked_let_no_rollout_begin() -> None:
    """Something else has refused it, and did not a moment later."""

    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        await controller.scale(decode=1)
        await asyncio.sleep(1.0)  # decode-1 is to go: no rollout begins
        change = controller.pools.change

        async def change_later(decide: Any) -> Any:
            await asyncio.sleep(DRAIN_S + 10)
            return await change(decide)

        controller.pools.change = change_later  # type: ignore[method-assign]
        asked = acts_pb2.StartRolloutRequest(model_dir=NEW, extra_workers=1)
        result = await controller.do(start_rollout=asked)
        assert "not all of its hosts were asked: try again" in result.error
        assert controller.read_dirs == []

    play(story)


def test_a_host_that_gets_a_worker_while_the_others_are_asked_lets_no_rollout_begin() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        for name in [name for name, its in world.workers.items() if its.host == "b"]:
            await controller.do(kill=acts_pb2.KillWorkerRequest(worker_id=name))
        hosts = {its.host for its in world.workers.values()}
        assert hosts == {"a"}

        async def fit_of(model_dir: str) -> Fit:
            await controller.scale(prefill=2, decode=2)
            await asyncio.sleep(START_S + 2)
            return Fit()

        controller.acts._fit_of = fit_of
        asked = acts_pb2.StartRolloutRequest(model_dir=NEW, extra_workers=2)
        result = await controller.do(start_rollout=asked)
        assert "not all of its hosts were asked: try again" in result.error
        assert controller.pools.rollout() is None
        assert changes(await controller.do(start_rollout=asked)), "b is asked now"

    play(story)


def test_status_says_why_a_worker_does_not_start() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        start = world.start

        async def on_b_alone(spec: WorkerSpec) -> Handle:
            if spec.host_name == "a" and str(spec.model.model_dir) == NEW:
                raise StartError(f"it cannot start on a: there is no directory {NEW}")
            return await start(spec)

        world.start = on_b_alone  # type: ignore[method-assign]
        await begin(controller)
        await asyncio.sleep(LONG_S)
        its = controller.pools.rollout()
        assert its is not None
        assert " starts again (it cannot start on a: there is no directory /m" in its.waits_for
        world.start = start  # type: ignore[method-assign]
        await watch(world, 2 * LONG_S)
        its = controller.pools.rollout()
        assert its is not None
        assert its.state == "done"

    play(story)


def test_why_a_worker_did_not_start_is_not_said_of_the_host_that_it_has_moved_to() -> None:
    async def story(world: World, controller: Controller) -> None:
        async def on_b_late(spec: WorkerSpec) -> Handle:
            if spec.host_name == "a":
                raise StartError("it cannot start on a")
            await asyncio.sleep(LONG_S)
            raise StartError("it cannot start on b")

        world.start = on_b_late  # type: ignore[method-assign]
        await controller.scale(decode=2)
        await asyncio.sleep(START_S)
        assert controller.pools.view().of("decode-1").failed == "it cannot start on a"
        await controller.do(cordon=acts_pb2.CordonHostRequest(host="a"))
        await asyncio.sleep(LONG_S / 2)
        seat, its = controller.pools.desired.seat("decode-1"), controller.pools.view()
        assert seat is not None
        assert (seat.host, its.of("decode-1").failed) == ("b", "")
        assert its.of("decode-1").phase is Phase.STARTING

    play(story)


def test_why_a_worker_has_died_replaces_why_it_did_not_start() -> None:
    async def story(world: World, controller: Controller) -> None:
        start, tries = world.start, list[WorkerSpec]()

        async def at_the_second_try(spec: WorkerSpec) -> Handle:
            tries.append(spec)
            if len(tries) == 1:
                raise StartError("it cannot start")
            return await start(spec)

        world.start = at_the_second_try  # type: ignore[method-assign]
        await controller.scale(decode=2)
        await asyncio.sleep(START_S + 5)
        its = controller.pools.view().of("decode-1")
        assert (its.phase, its.failed) == (Phase.RUNNING, "")
        world.end("decode-1", "killed")
        await asyncio.sleep(START_S / 2)
        its = controller.pools.view().of("decode-1")
        assert (its.phase, its.failed) == (Phase.STARTING, "killed")

    play(story)


def test_worker_of_a_revision_names_the_files_that_hosts_had_when_the_rollout_began() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        await begin(controller)
        desired = world.saved
        assert desired is not None
        launcher: Any = world
        supervisor = Supervisor(CLUSTER, launcher, controller.events.append, desired=desired)
        new = supervisor._spec_of(replace(desired.seats[0], model_dir=NEW))
        assert new.fingerprint == FINGERPRINT
        old = supervisor._spec_of(desired.seats[0])
        assert old.fingerprint == ""

    play(story)


def serves(world: World) -> bool:
    """Whether some revision has workers of both roles that do not drain."""
    there = {
        (its.model_dir, name.rpartition("-")[0])
        for name, its in world.workers.items()
        if not its.member.load.HasField("drain")
    }
    return any({(its, "prefill"), (its, "decode")} <= there for its, _ in there)


async def watch(world: World, for_s: float) -> None:
    for _ in range(int(for_s)):
        await asyncio.sleep(1.0)
        assert serves(world)


def test_each_worker_starts_again_on_its_seat_with_the_new_revision() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        places = {name: its.host for name, its in world.workers.items()}
        said = await begin(controller)
        assert said[0].endswith(f"-> {NEW}")
        assert len(said) == 5
        await watch(world, LONG_S)
        assert {its.model_dir for its in world.workers.values()} == {NEW}
        assert {name: its.host for name, its in world.workers.items()} == places
        assert world.drained_names == set()
        told = controller.pools.rollout()
        assert told is not None
        assert told.state == "done"
        texts = [event.text for event in controller.events]
        assert f"is to drain and start again with {NEW}" in texts
        assert world.n_starts == 8

    play(story)


@pytest.mark.parametrize("seed", range(8))
def test_next_controller_goes_on_and_can_undo(seed: int) -> None:
    async def story(world: World, controller: Controller) -> None:
        chance = random.Random(seed)
        await two_of_each(controller)
        first = await begin(controller, "x1")
        for _ in range(3):
            await watch(world, chance.uniform(1.0, 25.0))
            await controller.die()
            await asyncio.sleep(chance.uniform(0.0, 5.0))
            controller = Controller(world)
            await asyncio.sleep(1.0)
        assert await begin(controller, "x1") == first, "told as it was told before"
        its = controller.pools.rollout()
        assert its is not None
        if seed % 2 and its.state == "running":
            await controller.do(step_rollout=STEP(step=STEP.STEP_UNDO))
        await watch(world, LONG_S)
        end = controller.pools.rollout()
        assert end is not None
        assert end.state in ("done", "undone")
        has_new = end.state == "done"
        assert {its.model_dir == NEW for its in world.workers.values()} == {has_new}
        assert len(world.workers) == 4
        await controller.die()

    play(story)


def test_silent_host_holds_it_up_and_an_undo_waits_for_it() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        await begin(controller)
        await asyncio.sleep(2.0)
        going = next(n for n, its in world.workers.items() if its.member.load.HasField("drain"))
        world.silent.add(world.workers[going].host)
        await asyncio.sleep(LONG_S)
        its = controller.pools.rollout()
        assert its is not None
        assert its.state == "running"
        assert its.waits_for
        await controller.do(step_rollout=STEP(step=STEP.STEP_UNDO))
        await asyncio.sleep(10.0)
        world.silent.clear()
        await asyncio.sleep(LONG_S)
        assert {each.model_dir == NEW for each in world.workers.values()} == {False}
        told = controller.pools.rollout()
        assert told is not None
        assert told.state == "undone"

    play(story)


def test_dry_run_of_a_rollout_does_nothing() -> None:
    async def story(world: World, controller: Controller) -> None:
        await two_of_each(controller)
        asked = acts_pb2.StartRolloutRequest(act=acts_pb2.Act(dry_run=True), model_dir=NEW)
        said = changes(await controller.do(start_rollout=asked))
        assert "prefill-0: serves -> drain, stop, restart with the new revision" in said
        await asyncio.sleep(60)
        assert controller.pools.rollout() is None
        assert world.n_starts == 4

    play(story)


def test_pin_for_a_while_ends_only_after_the_rollout() -> None:
    async def story(world: World, controller: Controller) -> None:
        sizes = [acts_pb2.PoolSize(pool=name, workers=2) for name in ("prefill", "decode")]
        await controller.do(scale=acts_pb2.ScalePoolsRequest(pools=sizes, for_s=START_S + 10))
        await asyncio.sleep(START_S + 2)
        await begin(controller)
        while controller.pools.desired.rolling is not None:
            await watch(world, 1.0)
            assert len(controller.pools.desired.seats) == 4
        await asyncio.sleep(LONG_S)
        assert sorted(name.rpartition("-")[0] for name in world.workers) == ["decode", "prefill"]
        assert serves(world)

    play(story)
