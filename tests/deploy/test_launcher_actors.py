"""The launcher of Ray actors, over stand-ins for actors: processes that this test starts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.exceptions import RayActorError

from tests.deploy.clusters import model_with
from tests.processes import is_alive
from twolane.deploy.launch import process_end
from twolane.deploy.launch.ray_launcher import RayLauncher
from twolane.deploy.process.handshake import Handle, Ready
from twolane.deploy.spec.specs import WorkerSpec, new_epoch


class Method:
    """`actor.method.remote(…)` answers what `answer` returns or raises."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    async def remote(self, *_: object) -> Any:
        return self._answer()


class FakeActor:
    """Its process is one that sleeps."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.pid = Method(lambda: self._process.pid)
        self.start = Method(lambda: Ready("127.0.0.1:1", "", self._process.pid))
        self.stop = Method(self._die)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _die(self) -> None:
        self.end()
        raise RayActorError


class Actors:
    def __init__(self) -> None:
        self.made: list[FakeActor] = []

    def options(self, **_: object) -> Actors:
        return self

    def remote(self) -> FakeActor:
        self.made.append(FakeActor())
        return self.made[-1]


@pytest.fixture
def actors() -> Any:
    actors = Actors()
    yield actors
    for actor in actors.made:
        actor.end()


@pytest.fixture
async def launcher(
    tmp_path: Path, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RayLauncher]:
    async def ray(self: RayLauncher) -> Actors:
        return actors

    monkeypatch.setattr(RayLauncher, "_ray", ray)
    launcher = RayLauncher(tmp_path, tmp_path, n_actors=1)
    yield launcher
    await launcher.close()


async def started(launcher: RayLauncher) -> Handle:
    model = model_with(model_dir="", name="m")
    return await launcher.start(
        WorkerSpec(worker_id="w", epoch=new_epoch(), roles=(), model=model, routers=())
    )


async def test_an_actor_that_dies_while_it_is_stopped_has_stopped(launcher: RayLauncher) -> None:
    handle = await started(launcher)
    async with asyncio.timeout(60):
        await launcher.stop(handle, grace_s=60)
        assert await launcher.wait_exit(handle) == "killed by SIGKILL"
    assert not is_alive(handle.pid)


async def test_an_actor_that_stops_in_order_is_not_told_as_killed(
    launcher: RayLauncher, actors: Actors
) -> None:
    handle = await started(launcher)
    actors.made[0].stop = Method(lambda: None)
    await launcher.stop(handle, grace_s=60)
    assert await launcher.wait_exit(handle) == "stopped"
    assert not is_alive(handle.pid)


async def test_all_that_wait_for_an_end_hear_how_it_was(
    launcher: RayLauncher, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await started(launcher)
    waiting = [asyncio.create_task(launcher.wait_exit(handle)) for _ in range(2)]
    await asyncio.sleep(0)
    n_asked = 0
    status = process_end._exit_status

    def reaped_late(pidfd: int) -> int | None:
        nonlocal n_asked
        n_asked += 1
        return None if n_asked <= 2 else status(pidfd)

    monkeypatch.setattr(process_end, "_exit_status", reaped_late)
    os.kill(handle.pid, signal.SIGTERM)
    actors.made[0]._process.wait()
    async with asyncio.timeout(60):
        assert [await its for its in waiting] == ["killed by SIGTERM"] * 2


async def test_an_end_closes_the_descriptor(launcher: RayLauncher) -> None:
    before = psutil.Process().num_fds()
    handle = await started(launcher)
    await launcher.fence(handle)
    async with asyncio.timeout(60):
        await launcher.wait_exit(handle)
    assert psutil.Process().num_fds() == before
