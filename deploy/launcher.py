"""The launcher's interface: processes start, end, and are proven dead. Two implementations.

    twolane.deploy.process_launcher     child processes
    twolane.deploy.ray_launcher         Ray actors

A launcher decides nothing: who is restarted when is the supervisor's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twolane.deploy.spec import ProcessSpec


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


class Launcher(Protocol):
    """Every method may be called from one event loop only."""

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start it and wait until it serves. Raises `StartError`; then nothing of it is left."""
        ...

    async def wait_exit(self, handle: Handle) -> str:
        """Wait until the process is gone for good, and say how it went. Returning is the proof
        that no write of it is under way."""
        ...

    async def fence(self, handle: Handle) -> None:
        """Kill it, and return when it is proven dead. May be called of a dead one."""
        ...

    async def stop(self, handle: Handle, grace_s: float) -> None:
        """Ask it to end; after `grace_s`, fence it. Returns when it is proven dead."""
        ...

    async def close(self) -> None:
        """Fence whatever still runs, and leave nothing behind. May be called twice."""
        ...
