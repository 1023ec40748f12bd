"""`Launcher` over child processes of this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.launch.process_end import in_words
from twolane.deploy.process.cpu_share import try_prefer
from twolane.deploy.process.handshake import Handle, Ready, handle_of, read_ready
from twolane.deploy.process.parent_death import end_group
from twolane.deploy.spec.devices import environment_of
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec

DEPLOY_COMMAND = (sys.executable, "-m", "twolane.deploy")


class ProcessLauncher:
    """Each process leads a group of its own, so that it is killed with all that it started: ranks
    write to pages and hold GPUs as it does, and it is not dead before they are.

    The children end when this process ends, however it ends (see `twolane.deploy.process.child`).
    Their output goes to `<log_dir>/<name>.log`, one file for all incarnations. A `command` other
    than the default must understand the same arguments and read the same input; tests pass doubles.
    """

    def __init__(self, log_dir: Path, *, command: Sequence[str] = DEPLOY_COMMAND) -> None:
        self._log_dir = log_dir
        self._command = tuple(command)
        self._processes: dict[str, Process] = {}  # the latest incarnation of each name

    async def start(self, spec: ProcessSpec) -> Handle:
        if spec.name in self._processes:
            await _kill(self._processes.pop(spec.name))  # one incarnation at a time
        log = self._log_dir / f"{spec.name}.log"
        try:
            process, read_fd = await self._spawn(spec, log)
        except OSError as error:  # no memory, no descriptor, no disk: later there may be
            raise StartError(f"{spec.name}: {error}") from error
        try:
            ready: Ready = read_ready(await _read_line(read_fd), spec.name, log)
        except BaseException:
            await _kill(process)
            raise
        self._processes[spec.name] = process
        return handle_of(spec, ready)

    async def wait_exit(self, handle: Handle) -> str:
        process = self._process(handle)
        if process is None:
            return "was replaced"
        code = await process.wait()
        await end_group(process.pid)
        return in_words(code)

    async def fence(self, handle: Handle) -> None:
        process = self._process(handle)
        if process is not None:
            await _kill(process)

    async def stop(self, handle: Handle, grace_s: float) -> None:
        process = self._process(handle)
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            pass
        await _kill(process)

    async def close(self) -> None:
        for process in self._processes.values():
            await _kill(process)

    async def _spawn(self, spec: ProcessSpec, log: Path) -> tuple[Process, int]:
        """The process, and the end of a pipe in which it will say that it is ready."""
        log.parent.mkdir(parents=True, exist_ok=True)  # cleaners of /tmp take old folders
        read_fd, write_fd = os.pipe()
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    "router" if isinstance(spec, RouterSpec) else "worker",
                    "--spec-from-stdin",
                    *("--ready-fd", str(write_fd)),
                    *("--parent-pid", str(os.getpid())),
                    stdin=PIPE,
                    stdout=output,
                    stderr=STDOUT,
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
        return process, read_fd

    def _process(self, handle: Handle) -> Process | None:
        """None: another incarnation has taken its place, so it is dead."""
        process = self._processes.get(handle.name)
        return process if process is not None and process.pid == handle.pid else None


def _send(process: Process, spec: str) -> None:
    """To its standard input, which nobody else reads. One that ends before it has read is told of
    by the ready pipe."""
    assert process.stdin is not None
    process.stdin.write(spec.encode())
    process.stdin.close()


async def _kill(process: Process) -> None:
    """Kill the process and its group, and wait for it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    await end_group(process.pid)


async def _read_line(fd: int) -> bytes:
    """One line from a pipe, or what came before its end. Closes `fd`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
