"""Starts a contender's commands, and ends them and all that they started."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.contender import Contender

_POLL_S = 0.1
_N_PORTS = 10
_LAST_LINES = 20


class ContenderDiedError(RuntimeError):
    """A command did not start, or exited early; the message has its last output."""


@dataclass(frozen=True, slots=True)
class Started:
    """A contender that serves, its $NAMEs replaced."""

    contender: Contender
    logs: Sequence[Path]
    processes: Sequence[subprocess.Popen[bytes]]

    def check(self) -> None:
        """Raises `ContenderDiedError` if one of its commands has ended."""
        for process, log in zip(self.processes, self.logs, strict=True):
            if process.poll() is not None:
                raise ContenderDiedError(
                    f"{self.contender.name}: `{process.args!r}` ended with {process.returncode}:\n"
                    f"{_last_words(log)}"
                )

    def _is_ready(self) -> bool:
        return all(self.contender.ready.encode() in log.read_bytes() for log in self.logs)


@contextmanager
def start(contender: Contender, folder: Path) -> Iterator[Started]:
    """All its commands, from when they say that they are ready to the end of the block. Their
    output goes to files in `folder`. An address is taken as it is.

    Raises `ContenderDiedError`, `ContenderError`.
    """
    ports = {f"port{i}": str(port) for i, port in enumerate(_free_ports())}
    contender = contender.fill_in({**ports, "python": shlex.quote(sys.executable)})
    with ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        logs = [folder / f"{contender.name}_{i}.log" for i in range(len(contender.commands))]
        for command, log in zip(contender.commands, logs, strict=True):
            process = _launch(command, log)
            stack.callback(_end, process, contender.stop_timeout_s)
            processes.append(process)
        started = Started(contender, logs, processes)
        give_up_s = time.monotonic() + contender.start_timeout_s
        while not started._is_ready():
            started.check()
            if time.monotonic() > give_up_s:
                raise ContenderDiedError(
                    f"{contender.name} is not ready after {contender.start_timeout_s:g} s:\n"
                    + "\n".join(map(_last_words, logs))
                )
            time.sleep(_POLL_S)
        yield started


def _launch(command: str, log: Path) -> subprocess.Popen[bytes]:
    """Its standard input is a pipe that closes with us, for commands that exit at its end."""
    with log.open("wb") as output:
        return subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """SIGTERM to the command; once it has ended, or after a timeout, SIGKILL to its whole group."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _free_ports() -> list[int]:
    """Different from each other, and free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(_N_PORTS)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join(lines) or f"{log.name} is empty"
