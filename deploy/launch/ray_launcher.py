"""A `Launcher` that starts actors of its own Ray on this machine.

Ray starts the processes, each with as many GPUs as its worker asks for. The topology decides which
GPUs these are, so that a worker restarts on the GPUs that it had. We watch for deaths by pidfd:
Ray reports them a second later, and may report a process that is only silent. The supervisor
restarts processes, not Ray (`max_restarts=0`). For a Ray that runs already, see
`twolane.deploy.ray_cluster`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twolane.deploy.errors import StartError
from twolane.deploy.launch.host_process import HostProcess
from twolane.deploy.launch.process_launcher import read_own_log
from twolane.deploy.launch.ray_actor import ServiceActor
from twolane.deploy.launch.ray_config import start_ray
from twolane.deploy.process.handshake import Handle, handle_of, log_tail
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.v1 import acts_pb2


@dataclass(slots=True)
class _Started:
    actor: Any
    process: HostProcess  # the actor's
    has_stopped: bool = False  # in order: what is killed then serves nothing any more


class RayLauncher:
    """Ray is started with the first process and ended by `close`, which waits for a running start.
    Logs go to `<log_dir>/<name>.log`, Ray's own files to `temp_dir`."""

    def __init__(self, log_dir: Path, temp_dir: Path, *, n_actors: int, n_gpus: int = 0) -> None:
        """`n_gpus`: how many GPUs Ray may hand out: as many as all workers together ask for, or
        none if workers share GPUs."""
        self._log_dir = log_dir.absolute()
        self._temp_dir = temp_dir
        self._n_gpus = n_gpus
        self._n_actors = n_actors
        self._starting: asyncio.Task[Any] | None = None
        self._started: dict[str, _Started] = {}  # the latest incarnation of each name

    async def start(self, spec: ProcessSpec) -> Handle:
        actor_class = await self._ray()
        if spec.name in self._started:
            await self._started.pop(spec.name).process.kill()  # one incarnation at a time
        log = self._log_of(spec.name)
        kind = "router" if isinstance(spec, RouterSpec) else "worker"
        devices = () if isinstance(spec, RouterSpec) else spec.devices
        n_gpus = len(devices) if self._n_gpus else 0
        actor = actor_class.options(num_gpus=n_gpus).remote()
        process = _watched(await _call(actor.pid.remote(), spec.name, log))
        try:
            ready = await _call(
                actor.start.remote(kind, to_json(spec), str(log), os.getpid()), spec.name, log
            )
        except BaseException:
            await process.kill()
            raise
        self._started[spec.name] = _Started(actor, process)
        return handle_of(spec, ready)

    async def wait_exit(self, handle: Handle) -> str:
        its = self._its(handle)
        if its is None:
            return "was replaced"
        how = await its.process.wait()
        return "stopped" if its.has_stopped else how

    async def fence(self, handle: Handle) -> None:
        its = self._its(handle)
        if its is not None:
            await its.process.kill()

    async def stop(self, handle: Handle, grace_s: float) -> None:
        its = self._its(handle)
        if its is None:
            return
        if not its.process.has_ended:
            with contextlib.suppress(TimeoutError, StartError):  # dead or too slow: killed below
                async with asyncio.timeout(grace_s):
                    await _call(its.actor.stop.remote(), handle.name, self._log_of(handle.name))
                    its.has_stopped = True
        await its.process.kill()

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        return read_own_log(self._log_dir, request)

    async def close(self) -> None:
        for its in self._started.values():
            await its.process.kill()
        if self._starting is not None:
            await asyncio.wait([self._starting])
            import ray

            await asyncio.to_thread(ray.shutdown)

    async def _ray(self) -> Any:
        """The actor class, once Ray runs. The first caller starts Ray; all callers wait for it."""
        if self._starting is None:
            self._starting = asyncio.create_task(
                asyncio.to_thread(
                    start_ray, self._temp_dir, n_actors=self._n_actors, n_gpus=self._n_gpus
                )
            )
        try:
            await asyncio.shield(self._starting)
        except Exception as error:  # Ray raises a plain Exception if its daemons take over 30 s
            remedy = "use --launcher process, which needs no Ray"
            if "AF_UNIX" in str(error):
                remedy = "set TMPDIR to a shorter path, or use --launcher process"
            raise StartError(
                f"Ray did not start: {error} Its logs may say why; {remedy}"
            ) from error
        import ray

        # No CPUs are requested, because Ray does not manage ours.
        return ray.remote(num_cpus=0, max_restarts=0, max_concurrency=2)(ServiceActor)

    def _its(self, handle: Handle) -> _Started | None:
        """None if a later incarnation has replaced it, which proves it dead."""
        its = self._started.get(handle.name)
        return its if its is not None and its.process.pid == handle.pid else None

    def _log_of(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"


def _watched(pid: int) -> HostProcess:
    """The process of an actor that has just answered, so that the pid is still its own."""
    try:
        return HostProcess(pid, os.pidfd_open(pid), is_child=False)
    except OSError as error:  # it died at once, or no file descriptor is left
        raise StartError(f"process {pid}: {error}") from error


async def _call(reference: Any, name: str, log: Path) -> Any:
    """Wait for an actor's answer. Raises `StartError` if the actor raised it or died, or if Ray
    cannot say what became of it."""
    from ray.exceptions import RayActorError, RayError, RayTaskError

    try:
        return await reference
    except RayTaskError as error:
        raise StartError(f"{name}: {error.cause}") from error
    except RayActorError as error:
        raise StartError(f"{name} ended before it was ready:\n{log_tail(log)}") from error
    except RayError as error:  # it was ended for its memory, or Ray itself fails
        raise StartError(f"{name}: Ray: {error}") from error
