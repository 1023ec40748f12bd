"""A `Launcher` that starts processes on this host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from twolane.deploy.errors import RefusedError, StartError
from twolane.deploy.launch.host_process import HostProcess
from twolane.deploy.process.cpu_share import try_prefer
from twolane.deploy.process.handshake import Handle, Ready, handle_of, read_ready
from twolane.deploy.spec.devices import environment_of
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.rpc.log_file import read_log_file
from twolane.v1 import acts_pb2

DEPLOY_COMMAND = (sys.executable, "-m", "twolane.deploy")


class ProcessLauncher:
    """Each process leads its own process group, so that it is killed with everything it started.

    Without a `state_dir` the processes end when the launcher's process ends, however that happens
    (see `twolane.deploy.process.child`). With one they outlive it once they serve, and write their
    evidence there (`twolane.deploy.process.evidence`), by which the next launcher adopts them.

    Their output goes to `<log_dir>/<name>.log`, one file for all incarnations. A `command` other
    than the default must accept the same arguments and input; tests pass doubles.
    """

    def __init__(
        self,
        log_dir: Path,
        *,
        command: Sequence[str] = DEPLOY_COMMAND,
        state_dir: Path | None = None,
    ) -> None:
        self._log_dir = log_dir
        self._command = tuple(command)
        self._state_dir = state_dir
        self._processes: dict[str, HostProcess] = {}  # the latest incarnation of each name
        self._prepared: dict[str, _Spawned] = {}
        self._spawning = asyncio.Lock()

    def prepare(self, spec: WorkerSpec) -> None:
        """Start the worker's process, to which `start` will send its spec: it imports its engine's
        packages meanwhile. Of `spec`, only what a process gets when it starts must be known: its
        name, model and devices. Raises `StartError`."""
        self._prepared[spec.name] = self._spawn(spec)

    async def start(self, spec: ProcessSpec) -> Handle:
        if spec.name in self._processes:
            await self._processes.pop(spec.name).kill()  # one incarnation at a time
        if self._state_dir is not None:
            spec = replace(spec, state_dir=str(self._state_dir))
        async with self._spawning:  # one in each turn of the loop: a stop comes between them
            await asyncio.sleep(0)
            spawned = self._prepared.pop(spec.name, None) or self._spawn(spec)
        try:
            _send(spawned.popen, to_json(spec))
            line = await _read_line(spawned.ready)
            ready: Ready = read_ready(line, spec.name, self._log_of(spec))
        except BaseException:
            await spawned.drop()
            raise
        self._processes[spec.name] = spawned.process
        return handle_of(spec, ready)

    def adopt(self, name: str, process: HostProcess) -> None:
        """Watch a process that another launcher has started."""
        self._processes[name] = process

    async def wait_exit(self, handle: Handle) -> str:
        process = self._process(handle)
        return "was replaced" if process is None else await process.wait()

    async def fence(self, handle: Handle) -> None:
        process = self._process(handle)
        if process is not None:
            await process.kill()

    async def stop(self, handle: Handle, grace_s: float) -> None:
        process = self._process(handle)
        if process is None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            pass
        await process.kill()

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        return read_own_log(self._log_dir, request)

    async def close(self) -> None:
        while self._prepared:
            _, spawned = self._prepared.popitem()
            await spawned.drop()
        for process in self._processes.values():
            await process.kill()

    def let_go(self) -> None:
        """Stop watching all processes. With a `state_dir` they keep running."""
        for process in self._processes.values():
            process.let_go()
        self._processes.clear()

    def _log_of(self, spec: ProcessSpec) -> Path:
        return self._log_dir / f"{spec.name}.log"

    def _spawn(self, spec: ProcessSpec) -> _Spawned:
        """Raises `StartError`."""
        try:
            return self._try_spawn(spec)
        # No memory, descriptor or disk space now; a later start may succeed.
        except OSError as error:
            raise StartError(f"{spec.name}: {error}") from error

    def _try_spawn(self, spec: ProcessSpec) -> _Spawned:
        log = self._log_of(spec)
        # It may have been removed by a cleaner of /tmp.
        log.parent.mkdir(parents=True, exist_ok=True)
        read_fd, write_fd = os.pipe()
        ready = os.fdopen(read_fd, "rb")
        try:
            with log.open("ab") as output:
                popen = subprocess.Popen(
                    [
                        *self._command,
                        "router" if isinstance(spec, RouterSpec) else "worker",
                        "--spec-from-stdin",
                        *("--ready-fd", str(write_fd)),
                        *("--parent-pid", str(os.getpid())),
                        *_engine_options(spec),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[write_fd],
                    start_new_session=True,
                    env=os.environ | environment_of(spec),
                )
        except BaseException:
            ready.close()
            raise
        finally:
            os.close(write_fd)
        assert popen.stdin is not None
        try:
            if isinstance(spec, RouterSpec):
                try_prefer(popen.pid)
            process = HostProcess(popen.pid, os.pidfd_open(popen.pid), is_child=True)
        except BaseException:
            popen.kill()
            popen.wait()
            ready.close()
            popen.stdin.close()
            raise
        popen.returncode = 0  # stops Popen from waiting for it: its pidfd is used
        return _Spawned(popen, process, ready)

    def _process(self, handle: Handle) -> HostProcess | None:
        """None if a later incarnation has replaced it, which proves it dead."""
        process = self._processes.get(handle.name)
        return process if process is not None and process.pid == handle.pid else None


@dataclass(frozen=True, slots=True)
class _Spawned:
    """A process that waits for its spec. It reports at the other end of `ready` that it
    serves."""

    popen: subprocess.Popen[bytes]
    process: HostProcess
    ready: BinaryIO

    async def drop(self) -> None:
        """End it, whether or not it has its spec, and close what leads to it."""
        await self.process.kill()
        self.ready.close()
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of a spec that was sent in part
            self.popen.stdin.close()


def read_own_log(folder: Path, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
    """A log of the launcher's own folder. Raises `RefusedError` if there is none, or if it cannot
    be read."""
    try:
        found = read_log_file(folder, request, "the launcher")
    except OSError as error:
        raise RefusedError(f"the log of {request.name} cannot be read: {error}") from error
    if found is None:
        raise RefusedError(f"{folder} has no log of {request.name}")
    return found.response


def _engine_options(spec: ProcessSpec) -> tuple[str, ...]:
    """What a worker imports while it waits for its spec. With several ranks, other processes
    compute."""
    if not isinstance(spec, WorkerSpec) or spec.model.engine == "fake":
        return ()
    if spec.model.config.tensor_parallel > 1:
        return ()
    return ("--imports-engine", "cuda" if spec.devices else "cpu")


def _send(process: subprocess.Popen[bytes], spec: str) -> None:
    """Write the spec to the process' standard input; it fits into the pipe's buffer. If the process
    ends before it has read it, the ready pipe shows that."""
    assert process.stdin is not None
    try:
        process.stdin.write(spec.encode())
        process.stdin.close()
    except BrokenPipeError:
        pass


async def _read_line(pipe: BinaryIO) -> bytes:
    """Read one line from a pipe, or what came before its end. Closes it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        return await reader.readline()
    finally:
        transport.close()
