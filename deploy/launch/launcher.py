"""The launcher's interface: processes start, end, and are proven dead. Three implementations.

    twolane.deploy.launch.process_launcher     child processes
    twolane.deploy.launch.ray_launcher         Ray actors
    twolane.deploy.agent.launcher              processes of several hosts, by way of their agents

A launcher decides nothing: who is restarted when is the supervisor's business. The last of them may
raise `DeposedError` from every method.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.specs import ProcessSpec
from twolane.v1 import cluster_pb2


class Hosts(Protocol):
    """What a launcher of several hosts knows of them."""

    def hosts(self) -> list[cluster_pb2.HostStatus]:
        """Every host and who has a seat there."""
        ...

    @property
    def declared_dead(self) -> Collection[int]:
        """Epochs that are dead because their host was switched off: the routers are to hear it.
        Of other deaths the host's own agent tells them."""
        ...

    def outlive(self) -> None:
        """The cluster is up: from now on a failure of the launcher ends no process."""
        ...

    async def say_off(self, host_name: str) -> str:
        """Take an operator's word that a silent host is off. Returns the proof in words; raises
        `NotProvenError` for a host that answers."""
        ...

    async def prove(self, epoch: int) -> None:
        """Have the agent that knows it tell the routers again that this epoch is dead."""
        ...


class Launcher(Protocol):
    """Every method may be called from one event loop only."""

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start it and wait until it serves; where agents have kept one that is alike running,
        adopt that. Raises `StartError`; then nothing of it is left."""
        ...

    async def wait_exit(self, handle: Handle) -> str:
        """Wait until the process is gone for good, and say how it went. Returning is the proof
        that no write of it is under way."""
        ...

    async def fence(self, handle: Handle) -> None:
        """Kill it, and return when it is proven dead. May be called of a dead one. Raises
        `NotProvenError` where its host is silent, and nothing switches that off."""
        ...

    async def stop(self, handle: Handle, grace_s: float) -> None:
        """Ask it to end; after `grace_s`, fence it. Returns when it is proven dead. Raises
        `NotProvenError`, as `fence`."""
        ...

    async def close(self) -> None:
        """Fence whatever still runs, and leave nothing behind. May be called twice."""
        ...
