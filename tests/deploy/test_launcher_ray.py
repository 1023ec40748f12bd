from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import deploy.ray_launcher
from deploy.launcher import StartError
from deploy.ray_launcher import RayLauncher
from deploy.spec import ModelSpec, WorkerSpec, new_epoch


async def test_an_actor_that_dies_before_it_says_its_pid_is_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StillbornActor:
        def pid(self) -> int:
            import os

            os._exit(3)

    monkeypatch.setattr(deploy.ray_launcher, "ServiceActor", StillbornActor)
    model = ModelSpec(model_dir="", name="m")
    spec = WorkerSpec(worker_id="w", epoch=new_epoch(), roles=(), model=model, routers=())
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets want a short path
        launcher = RayLauncher(tmp_path, Path(short), n_actors=1)
        try:
            with pytest.raises(StartError, match="w ended before it was ready"):
                await launcher.start(spec)
        finally:
            await launcher.close()


async def test_actors_get_the_gpus_that_they_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SeeingActor:
        def pid(self) -> int:
            import os

            return os.getpid()

        def start(self, kind: str, spec: str, log: str, launcher_pid: int) -> object:
            import os

            from deploy.handshake import Ready

            return Ready(os.environ.get("CUDA_VISIBLE_DEVICES", "all"), "", os.getpid())

    monkeypatch.setattr(deploy.ray_launcher, "ServiceActor", SeeingActor)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = ModelSpec(model_dir="", name="m")
    with tempfile.TemporaryDirectory() as short:
        # Ray believes what it is told of GPUs.
        launcher = RayLauncher(tmp_path, Path(short), n_actors=3, n_gpus=4)
        try:
            seen = []
            for name, devices in (("a", ("0", "1")), ("b", ("2", "3")), ("c", ())):
                spec = WorkerSpec(
                    worker_id=name, epoch=new_epoch(), roles=(), model=model, routers=(),
                    devices=devices,
                )  # fmt: skip
                seen.append((await launcher.start(spec)).endpoint)
            assert sorted(",".join(seen[:2]).split(",")) == ["0", "1", "2", "3"]
            assert seen[2] in ("", "all"), "as this version of Ray does it"
        finally:
            await launcher.close()
