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
