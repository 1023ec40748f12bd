from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RaySystemError

import twolane.deploy.launch.ray_launcher
from tests.deploy.clusters import model_with
from tests.processes import is_alive
from twolane.deploy.errors import StartError
from twolane.deploy.launch.ray_actor import ServiceActor
from twolane.deploy.launch.ray_launcher import RayLauncher
from twolane.deploy.spec.specs import ProcessSpec, WorkerSpec, new_epoch


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("too much"), RaySystemError("no store"), GetTimeoutError("late")]
)
async def test_whatever_ray_says_of_an_actor_is_a_start_that_failed(
    error: Exception, tmp_path: Path
) -> None:
    async def answer() -> None:
        raise error

    with pytest.raises(StartError, match=f"w: Ray: .*{error.args[0]}"):
        await twolane.deploy.launch.ray_launcher._call(answer(), "w", tmp_path / "w.log")


async def test_an_actor_that_dies_before_it_says_its_pid_is_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StillbornActor:
        def pid(self) -> int:
            import os

            os._exit(3)

    monkeypatch.setattr(twolane.deploy.launch.ray_launcher, "ServiceActor", StillbornActor)
    model = model_with(model_dir="", name="m")
    spec = WorkerSpec(worker_id="w", epoch=new_epoch(), roles=(), model=model, routers=())
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets want a short path
        launcher = RayLauncher(tmp_path, Path(short), n_actors=1)
        try:
            with pytest.raises(StartError, match="w ended before it was ready"):
                await launcher.start(spec)
        finally:
            await launcher.close()


async def test_actors_see_the_gpus_that_were_placed_and_end_with_all_that_they_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SeeingActor(ServiceActor):
        """Real up to what it serves: it says which GPUs it sees, and starts what ranks would be."""

        async def _serve(self, spec: ProcessSpec) -> None:
            import os
            import subprocess

            from twolane.deploy.process.handshake import Ready

            child = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
            self._ready.set_result(Ready(seen, str(child.pid), os.getpid()))
            await self._stop.wait()

    monkeypatch.setattr(twolane.deploy.launch.ray_launcher, "ServiceActor", SeeingActor)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = model_with(model_dir="", name="m")

    def spec(name: str, *devices: str) -> WorkerSpec:
        return WorkerSpec(
            worker_id=name, epoch=new_epoch(), roles=(), model=model, routers=(), devices=devices
        )

    with tempfile.TemporaryDirectory() as short:
        # Ray believes what it is told of GPUs. Left to itself it would give 0 and 1 to the first.
        launcher = RayLauncher(tmp_path, Path(short), n_actors=3, n_gpus=3)
        try:
            pair = await launcher.start(spec("pair", "2", "3"))
            assert pair.endpoint == "2,3"
            assert (await launcher.start(spec("single", "0"))).endpoint == "0"
            assert (await launcher.start(spec("none"))).endpoint in ("", "all"), (
                "as this version of Ray does it"
            )
            os.kill(pair.pid, signal.SIGKILL)
            await launcher.wait_exit(pair)
            assert not is_alive(int(pair.metrics_endpoint))
            again = await launcher.start(spec("pair", "2", "3"))  # Ray has these to give again
            assert again.endpoint == "2,3"
        finally:
            await launcher.close()
        assert not is_alive(int(again.metrics_endpoint))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError("AF_UNIX path length cannot exceed 107 bytes: /a/long/one"),
            r"shorter path, or use --launcher process",
        ),
        (Exception("The current node timed out during startup."), r"--launcher process, which"),
    ],
)
async def test_a_ray_that_does_not_start_is_told_with_the_remedy(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_ray(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(twolane.deploy.launch.ray_launcher, "start_ray", start_ray)
    model = model_with(model_dir="", name="m")
    spec = WorkerSpec(worker_id="w", epoch=new_epoch(), roles=(), model=model, routers=())
    with pytest.raises(StartError, match=told):
        await RayLauncher(tmp_path, tmp_path, n_actors=1).start(spec)
