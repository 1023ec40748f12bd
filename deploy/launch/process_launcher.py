"""`Launcher` with processes of this host."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.launch.host_process import HostProcess
from twolane.deploy.process.cpu_share import try_prefer
from twolane.deploy.process.handshake import Handle, Ready, handle_of, read_ready
from twolane.deploy.spec.devices import environment_of
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec

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

    async def start(self, spec: ProcessSpec) -> Handle:
        if spec.name in self._processes:
            await self._processes.pop(spec.name).kill()  # one incarnation at a time
        if self._state_dir is not None:
            spec = replace(spec, state_dir=str(self._state_dir))
        log = self._log_dir / f"{spec.name}.log"
        try:
            process, read_fd = self._spawn(spec, log)
        except OSError as error:  # no memory, no descriptor, no disk: later there may be
            raise StartError(f"{spec.name}: {error}") from error
        try:
            ready: Ready = read_ready(await _read_line(read_fd), spec.name, log)
        except BaseException:
            await process.kill()
            raise
        self._processes[spec.name] = process
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

    async def close(self) -> None:
        for process in self._processes.values():
            await process.kill()

    def let_go(self) -> None:
        """Stop watching all processes. With a `state_dir` they keep running."""
        for process in self._processes.values():
            process.let_go()
        self._processes.clear()

    def _spawn(self, spec: ProcessSpec, log: Path) -> tuple[HostProcess, int]:
        """Start the process. Returns it, and the read end of the pipe on which it will report that
        it is ready."""
        log.parent.mkdir(parents=True, exist_ok=True)  # cleaners of /tmp take old folders
        read_fd, write_fd = os.pipe()
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [
                        *self._command,
                        "router" if isinstance(spec, RouterSpec) else "worker",
                        "--spec-from-stdin",
                        *("--ready-fd", str(write_fd)),
                        *("--parent-pid", str(os.getpid())),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[write_fd],
                    start_new_session=True,
                    env=os.environ | environment_of(spec),
                )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        if isinstance(spec, RouterSpec):
            try_prefer(process.pid)
        _send(process, to_json(spec))
        process.returncode = 0  # it is waited for below, by its pidfd
        return HostProcess(process.pid, os.pidfd_open(process.pid), is_child=True), read_fd

    def _process(self, handle: Handle) -> HostProcess | None:
        """None if a later incarnation has replaced it, which proves it dead."""
        process = self._processes.get(handle.name)
        return process if process is not None and process.pid == handle.pid else None


def _send(process: subprocess.Popen[bytes], spec: str) -> None:
    """Write the spec to the process' standard input; it fits into the pipe's buffer. If the process
    ends before it has read it, the ready pipe shows that."""
    assert process.stdin is not None
    try:
        process.stdin.write(spec.encode())
        process.stdin.close()
    except BrokenPipeError:
        pass


async def _read_line(fd: int) -> bytes:
    """Read one line from a pipe, or what came before its end. Closes `fd`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
