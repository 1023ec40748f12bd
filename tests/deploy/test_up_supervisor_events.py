"""What a supervisor tells routers of, for whoever looks at events; how it stops and fences."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest

from tests.deploy.supervised import CLUSTER, QUICK, Scene, scene
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.launch.events import Kind
from twolane.deploy.launch.supervisor import Supervisor
from twolane.deploy.process.handshake import Handle

__all__ = ["scene"]  # a fixture


async def test_what_happens_to_processes_is_told_to_a_router_once_it_answers(
    scene: Scene,
) -> None:
    async with scene.up():
        _, old = scene.launcher.running("decode-0")[0]
        scene.admin.fails = grpc.StatusCode.UNAVAILABLE
        scene.launcher.kill(scene.launcher.running("decode-0")[0][0], "killed by SIGSEGV")
        await scene.until(lambda: scene.admin.calls_failed > 3)
        assert scene.admin.told == []
        scene.admin.fails = None
        await scene.until(lambda: bool(scene.admin.told))
        _, new = scene.launcher.running("decode-0")[0]
        scene.admin.fence_wanted.add(new.epoch)  # some looks later
        await scene.until(lambda: scene.admin.gone[-1:] == [new.epoch])
        text = f"decode-0 ({old.epoch:016x}) died: killed by SIGSEGV"
        assert scene.admin.told.count(text) == 1


async def test_a_worker_that_waits_for_its_restart_is_told_with_the_wait(scene: Scene) -> None:
    async with scene.up():
        scene.launcher.broken["decode-0"] = "no memory"
        scene.launcher.kill(scene.launcher.running("decode-0")[0][0])
        await scene.until(lambda: "decode-0 restarting: in 0.02 s" in scene.admin.told)
        assert "decode-0 restarting: now" in scene.admin.told
        scene.launcher.broken.clear()
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))


async def test_ready_is_told_once_a_router_hears_the_controller(scene: Scene) -> None:
    """Until then it refuses every act."""
    scene.admin.is_deaf = True
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: scene.admin.calls_failed > 2)
    assert not scene.told(Kind.READY)
    scene.admin.is_deaf = False
    await scene.until(lambda: bool(scene.told(Kind.READY)))
    scene.stop.set()
    await running
    assert len(scene.told(Kind.READY)) == 1


async def test_a_new_cluster_whose_routers_hear_no_controller_does_not_start(scene: Scene) -> None:
    scene.admin.is_deaf = True
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: scene.admin.calls_failed > 2)
    assert not running.done()
    scene.skip(QUICK.ready_timeout_s)
    with pytest.raises(StartError, match="not ready after 60 s; no router takes this controller's"):
        await running
    assert not scene.told(Kind.READY)


async def test_a_stop_has_one_grace_period_for_routers_and_workers(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    graces: dict[str, float] = {}

    async def stop(handle: Handle, grace_s: float) -> None:
        graces[handle.name] = grace_s
        if handle.name == "router-0":  # it hangs
            await asyncio.sleep(0.2)
        scene.launcher.kill(handle.pid)

    monkeypatch.setattr(scene.launcher, "stop", stop)
    async with scene.up():
        pass
    of_router = graces.pop("router-0")
    for grace_s in graces.values():
        assert QUICK.stop_margin_s <= grace_s <= max(QUICK.stop_margin_s, of_router - 0.2)
    assert set(graces) == {"prefill-0", "decode-0"}
    assert of_router > QUICK.stop_margin_s + 0.2


async def test_only_the_epoch_that_is_named_is_fenced(scene: Scene) -> None:
    async with scene.up():
        _, old = scene.launcher.running("decode-0")[0]
        assert "fenced" in await scene.supervisor.fence("decode-0", old.epoch)
        await scene.until(lambda: len(scene.told(Kind.STARTED, "decode-0")) == 2)
        with pytest.raises(NotProvenError, match=rf"{old.epoch:016x} of decode-0 is not running"):
            await scene.supervisor.fence("decode-0", old.epoch)
        assert len(scene.told(Kind.DIED, "decode-0")) == 1
        assert "fenced" in await scene.supervisor.fence("decode-0")


async def test_deaths_and_starts_that_fail_are_counted_by_pool(scene: Scene) -> None:
    async with scene.up():
        scene.launcher.broken["decode-0"] = "no memory"
        scene.launcher.kill(scene.launcher.running("decode-0")[0][0])
        await scene.until(lambda: len(scene.told(Kind.RESTARTING, "decode-0")) == 3)
        scene.launcher.broken.clear()
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))
        counted = {"deaths.decode": 1, "failed_starts.decode": 2}
        await scene.until(lambda: scene.admin.counters == counted)


async def test_router_that_knows_nobody_yet_gets_nobody_killed(scene: Scene) -> None:
    async with scene.up():
        members = dict(scene.admin.members)
        scene.admin.members.clear()
        await asyncio.sleep(2 * QUICK.fencing.lost_s)
        scene.admin.members.update(members)
        await asyncio.sleep(QUICK.fencing.lost_s)
        assert not [event for event in scene.events if event.kind is Kind.FENCED]


@pytest.mark.parametrize(
    ("fails", "is_killed"),
    [(grpc.StatusCode.DEADLINE_EXCEEDED, True), (grpc.StatusCode.UNAVAILABLE, False)],
)
async def test_router_that_answers_nothing_is_killed_and_started_again(
    scene: Scene, fails: grpc.StatusCode, is_killed: bool
) -> None:
    quick = replace(QUICK, fencing=replace(QUICK.fencing, hung_router_s=0.05))
    scene.supervisor = Supervisor(CLUSTER, scene.launcher, scene.events.append, quick)
    async with scene.up():
        scene.admin.fails = fails
        n_failed = scene.admin.calls_failed
        await scene.until(
            lambda: scene.admin.calls_failed > n_failed + 30 or scene.told(Kind.FENCED, "router-0")
        )
        scene.admin.fails = None
        assert bool(scene.told(Kind.FENCED, "router-0")) is is_killed
        await scene.until(lambda: len(scene.told(Kind.STARTED, "router-0")) == 1 + is_killed)
        assert len(scene.told(Kind.DIED, "router-0")) == is_killed
