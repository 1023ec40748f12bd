"""A child tells its parent, in one line of JSON on a pipe, that it serves or why it cannot."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.spec.spec_json import from_value
from twolane.deploy.spec.specs import ProcessSpec


@dataclass(frozen=True, slots=True)
class Handle:
    """A process that came up. Identity is (name, epoch); a restarted one has another handle."""

    name: str
    epoch: int
    endpoint: str  # host:port of its gRPC server
    metrics_endpoint: str  # host:port, or empty
    pid: int
    worker_endpoint: str = ""  # host:port where a router hears workers and the launcher
    runs_on: str = ""  # a worker's device and dtype, for people
    http_endpoint: str = ""  # host:port of a router's HTTP door, or empty
    admin_endpoint: str = ""  # unix:PATH of a router's door for operators, or empty
    admin_port_endpoint: str = ""  # host:port of that for operators of other machines, or empty
    host_name: str = ""  # its host's name, where an agent runs it; empty: this machine

    @property
    def key(self) -> tuple[str, int, int]:
        """Of this incarnation: name, epoch, pid. Two of a router differ in the pid alone."""
        return self.name, self.epoch, self.pid


LOG_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Ready:
    """What a process says when it serves; `Handle` says what its fields are."""

    endpoint: str
    metrics_endpoint: str
    pid: int
    worker_endpoint: str = ""
    runs_on: str = ""
    http_endpoint: str = ""
    admin_endpoint: str = ""
    admin_port_endpoint: str = ""


def send_ready(fd: int, ready: Ready) -> None:
    """Write the line and close `fd`."""
    _send(fd, asdict(ready))


def send_failure(fd: int, text: str) -> None:
    """Write why there will be no service, and close `fd`."""
    _send(fd, {"error": text})


def _send(fd: int, value: dict[str, object]) -> None:
    with os.fdopen(fd, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(value) + "\n")


def read_ready(line: bytes, name: str, log: Path) -> Ready:
    """Raises `StartError` with the child's own words, or the end of its log if it said nothing."""
    if not line:
        raise StartError(f"{name} ended before it was ready:\n{log_tail(log)}")
    value = json.loads(line)
    if "error" in value:
        raise StartError(f"{name}: {value['error']}")
    return from_value(Ready, value)


def handle_of(spec: ProcessSpec, ready: Ready) -> Handle:
    """The launcher's record of a process that said `ready`."""
    return Handle(
        name=spec.name,
        epoch=spec.epoch,
        endpoint=ready.endpoint,
        metrics_endpoint=ready.metrics_endpoint,
        pid=ready.pid,
        worker_endpoint=ready.worker_endpoint,
        runs_on=ready.runs_on,
        http_endpoint=ready.http_endpoint,
        admin_endpoint=ready.admin_endpoint,
        admin_port_endpoint=ready.admin_port_endpoint,
        host_name=spec.host_name,
    )


def log_tail(log: Path) -> str:
    """The last lines of a log, indented; or that it is empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:]) or "  (its log is empty)"
