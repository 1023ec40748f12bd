"""A supervisor starts a cluster, keeps it running, and stops it."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.deploy.supervised import QUICK, Scene, scene
from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Kind
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec

__all__ = ["scene"]  # a fixture


async def test_ready_comes_after_every_start_and_stop_ends_the_router_first(scene: Scene) -> None:
    async with scene.up():
        kinds = [event.kind for event in scene.events]
        assert kinds.count(Kind.STARTED) == 3
        assert kinds[-1] is Kind.READY
    assert scene.launcher.stopped[0] == "router-0"
    assert sorted(scene.launcher.stopped) == ["decode-0", "prefill-0", "router-0"]
    assert scene.launcher.is_closed
    assert scene.events[-1].kind is Kind.STOPPED


async def test_not_ready_before_the_router_serves_and_sees_everybody(scene: Scene) -> None:
    scene.admin.is_serving = False
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: len(scene.launcher.processes) == 3)
    await asyncio.sleep(0.1)
    assert not scene.told(Kind.READY)
    scene.admin.is_serving = True
    await scene.until(lambda: bool(scene.told(Kind.READY)))
    scene.stop.set()
    await running


async def test_a_worker_that_never_announces_itself_is_named(scene: Scene) -> None:
    scene.launcher.mute.add("decode-0")
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: scene.admin.n_asked > 2)  # so the first answer has come
    assert not running.done()
    scene.skip(QUICK.ready_timeout_s)
    with pytest.raises(
        StartError, match=r"not ready after 60 s; the router does not see decode-0$"
    ):
        await running
    assert scene.launcher.is_closed


async def test_a_worker_that_cannot_start_fails_the_whole_with_its_own_words(scene: Scene) -> None:
    scene.launcher.broken["decode-0"] = "decode-0: the model is square"
    with pytest.raises(StartError, match=r"^decode-0: the model is square$"):
        await scene.run()
    assert not scene.told(Kind.READY)
    assert all(process.ended.is_set() for process in scene.launcher.processes.values())


async def test_a_death_during_start_fails_at_once(scene: Scene) -> None:
    scene.launcher.mute.add("decode-0")
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: bool(scene.launcher.running("prefill-0")))
    scene.launcher.kill(scene.launcher.running("prefill-0")[0][0], "killed by SIGKILL")
    with pytest.raises(StartError, match="prefill-0 killed by SIGKILL"):
        await running


async def test_a_dead_worker_comes_back_as_a_new_epoch_and_is_reported_gone(scene: Scene) -> None:
    async with scene.up():
        pid, old = scene.launcher.running("decode-0")[0]
        scene.launcher.kill(pid, "killed by SIGSEGV")
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        _, new = scene.launcher.running("decode-0")[0]
        assert new.epoch != old.epoch
        assert scene.told(Kind.DIED, "decode-0")[0].text == "killed by SIGSEGV"


async def test_a_worker_that_dies_again_and_again_waits_longer(scene: Scene) -> None:
    async with scene.up():
        scene.launcher.broken["decode-0"] = "no memory"
        scene.launcher.kill(scene.launcher.running("decode-0")[0][0])
        await scene.until(lambda: len(scene.told(Kind.RESTARTING, "decode-0")) >= 4)
        texts = [event.text for event in scene.told(Kind.RESTARTING, "decode-0")[:4]]
        assert texts == ["now", "in 0.01 s", "in 0.02 s", "in 0.04 s"]
        scene.launcher.broken.clear()
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))


@pytest.mark.parametrize("code", ["INTERNAL", "CANCELLED", "UNKNOWN", "UNAVAILABLE"])
async def test_nothing_that_a_dying_router_answers_ends_the_supervisor(
    scene: Scene, code: str
) -> None:
    async with scene.up():
        scene.admin.fails = grpc.StatusCode[code]
        pid, old = scene.launcher.running("decode-0")[0]
        scene.launcher.kill(pid)
        await scene.until(lambda: scene.admin.calls_failed > 5)
        scene.admin.fails = None
        await scene.until(lambda: scene.admin.gone == [old.epoch])


async def test_workers_are_told_the_routers_door_for_workers(scene: Scene) -> None:
    async with scene.up():
        for name in ("prefill-0", "decode-0"):
            _, spec = scene.launcher.running(name)[0]
            assert isinstance(spec, WorkerSpec)
            assert spec.routers == (scene.launcher.worker_endpoint,)


async def test_a_dead_router_comes_back_at_the_same_ports(scene: Scene) -> None:
    async with scene.up():
        scene.launcher.kill(scene.launcher.running("router-0")[0][0])
        await scene.until(lambda: bool(scene.launcher.running("router-0")))
        _, spec = scene.launcher.running("router-0")[0]
        assert isinstance(spec, RouterSpec)
        assert scene.launcher.endpoint.endswith(f":{spec.settings.port}")
        assert scene.launcher.worker_endpoint.endswith(f":{spec.settings.worker_port}")
        assert spec.settings.metrics_port == 9090
    assert scene.admin.gone == []


async def test_a_worker_that_a_peer_wants_proven_dead_is_killed_then_reported(
    scene: Scene,
) -> None:
    async with scene.up():
        _, old = scene.launcher.running("prefill-0")[0]
        scene.admin.fence_wanted.add(old.epoch)
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        assert scene.told(Kind.FENCED, "prefill-0")[0].epoch == old.epoch
        assert scene.told(Kind.DIED, "prefill-0")[0].text == "fenced"
        await scene.until(lambda: bool(scene.launcher.running("prefill-0")))


async def test_nobody_is_called_gone_whom_we_did_not_start(scene: Scene) -> None:
    async with scene.up():
        scene.admin.fence_wanted.add(12345)
        await asyncio.sleep(0.1)
        assert scene.admin.gone == []
        assert not [event for event in scene.events if event.kind is Kind.FENCED]


async def test_an_epoch_that_died_before_is_reported_again_when_asked_for(scene: Scene) -> None:
    async with scene.up():
        pid, old = scene.launcher.running("prefill-0")[0]
        scene.launcher.kill(pid)
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        scene.admin.fence_wanted.add(old.epoch)
        await scene.until(lambda: scene.admin.gone == [old.epoch] * 2)


async def test_hurry_does_not_wait_for_the_grace(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(handle: Handle, grace_s: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(scene.launcher, "stop", never)
    async with scene.up():
        scene.hurry.set()
    assert scene.launcher.is_closed


async def test_worker_whose_step_does_not_end_is_killed_loudly_and_comes_back(scene: Scene) -> None:
    async with scene.up():
        _, old = scene.launcher.running("prefill-0")[0]
        scene.admin.step_age_s[old.epoch] = 7.0  # late, and it may end yet
        await asyncio.sleep(0.1)
        assert not scene.told(Kind.FENCED, "prefill-0")
        scene.admin.step_age_s[old.epoch] = 10.5
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        (fenced,) = scene.told(Kind.FENCED, "prefill-0")
        assert fenced.text == "its step has not ended for 10 s"
        await scene.until(lambda: bool(scene.launcher.running("prefill-0")))


async def test_nobody_is_killed_on_the_word_of_a_worker_that_is_gone(scene: Scene) -> None:
    async with scene.up():
        _, healthy = scene.launcher.running("prefill-0")[0]
        scene.admin.members[999] = "gone"
        scene.admin.wanted_by_the_gone.add(healthy.epoch)
        await asyncio.sleep(0.1)
        assert not scene.told(Kind.FENCED, "prefill-0")


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_worker_that_runs_and_is_gone_for_the_router_is_killed_and_comes_back(
    scene: Scene, is_forgotten: bool
) -> None:
    async with scene.up():
        _, old = scene.launcher.running("decode-0")[0]
        if is_forgotten:
            del scene.admin.members[old.epoch]
        else:
            scene.admin.members[old.epoch] = "gone"
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        (fenced,) = scene.told(Kind.FENCED, "decode-0")
        assert fenced.text.startswith("it runs, but the router has not heard from it for ")
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))
        assert not scene.told(Kind.FENCED, "prefill-0")
