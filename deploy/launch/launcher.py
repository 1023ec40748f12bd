"""The launcher's interface: start processes, end them, prove them dead. It has three
implementations.

    twolane.deploy.launch.process_launcher     child processes
    twolane.deploy.launch.ray_launcher         Ray actors
    twolane.deploy.agent.launcher              processes of several hosts, through their agents

A launcher makes no decisions: the supervisor decides which process is restarted, and when. Every
method of `twolane.deploy.agent.launcher` may also raise `DeposedError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.revision import Fit
from twolane.deploy.spec.specs import ModelSpec, ProcessSpec
from twolane.v1 import acts_pb2, cluster_pb2


class Hosts(Protocol):
    """What a launcher for several hosts knows about them."""

    @property
    def controller(self) -> tuple[str, int]:
        """The id and the term of the controller whose launcher this is."""
        ...

    def hosts(self) -> list[cluster_pb2.HostStatus]:
        """Every host with the workers that have a seat there."""
        ...

    async def watch(self) -> None:
        """Return when no host is watched any more. Raises if a bug of ours ends the watch of one:
        it would look silent. May be cancelled, and called again."""
        ...

    def want(self, hosts: Collection[str]) -> None:
        """These hosts have a seat that is taken. Of those that come and go, others may go."""
        ...

    def running(self) -> set[str]:
        """The names of what runs on hosts that are heard, also of another launcher."""
        ...

    def found(self) -> list[Seat]:
        """The workers among them, with the roles and the model that they were started with."""
        ...

    def vacate(self, name: str) -> None:
        """The seat of that worker, which has ended, is free."""
        ...

    async def save(self, desired: Desired) -> None:
        """Keep it on the hosts, for the controller that takes over. Raises `RefusedError` if none
        of them has it, `DeposedError`."""
        ...

    async def fit_of(
        self, model: ModelSpec, model_dir: str, *, loads: Collection[str], others: Collection[str]
    ) -> Fit:
        """Whether hosts can load that directory as another revision of the model: those of `loads`,
        each of which must say so unless its agent is of a version that cannot, and of `others`
        those that answer."""
        ...

    @property
    def lost(self) -> Collection[int]:
        """Epochs that ran in pods that are gone, without a proof that they have ended."""
        ...

    def proven(self, epochs: Collection[int]) -> None:
        """Routers have heard of their end from the agents of those pods."""
        ...

    @property
    def counters(self) -> Counter[str]:
        """What is counted of hosts that come and go, for metrics."""
        ...

    @property
    def declared_dead(self) -> Collection[int]:
        """Epochs that are dead because their host was switched off. The caller reports them to the
        routers; the host's own agent reports all other deaths."""
        ...

    def outlive(self) -> None:
        """Call it when the cluster is up: from now on a failure of the launcher ends no process."""
        ...

    async def ends(self) -> None:
        """Call it when the cluster is to stop: nothing outlives the launcher, and what is desired
        is forgotten."""
        ...

    async def end_others(self, names: Collection[str], grace_s: float) -> None:
        """Stop what runs on hosts that answer, also of earlier launchers, but for `names`; routers
        first. Raises `NotProvenError` if some of it may still run, and `DeposedError`."""
        ...

    @property
    def left(self) -> str:
        """Once the launcher is closed: what was to end and may still run, and where; empty if all
        is proven dead, or nothing was to end."""
        ...

    async def say_off(self, host_name: str) -> str:
        """Accept an operator's statement that a host which does not answer is switched off. Returns
        the proof for display; raises `NotProvenError` for a host that answers."""
        ...

    async def prove(self, epoch: int) -> None:
        """Have the agent that proved the death of this epoch report it to the routers again."""
        ...


class Launcher(Protocol):
    """Every method may be called from one event loop only."""

    async def start(self, spec: ProcessSpec) -> Handle:
        """Start a process and wait until it serves. If agents have kept an equal one running, adopt
        that. Raises `StartError`; then nothing of the process is left."""
        ...

    async def wait_exit(self, handle: Handle) -> str:
        """Wait until the process has ended, and return how, for display. Returning proves that none
        of its writes is in flight."""
        ...

    async def fence(self, handle: Handle) -> None:
        """Kill the process and return when it is proven dead. May be called for a dead process.
        Raises `NotProvenError` if its host does not answer and cannot be switched off."""
        ...

    async def stop(self, handle: Handle, grace_s: float) -> None:
        """Send SIGTERM, and fence the process after `grace_s`. Returns when it is proven dead.
        Raises `NotProvenError` as `fence` does."""
        ...

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        """Read the log file of a process that runs or has run. Raises `RefusedError` if there is
        none that can be read now."""
        ...

    async def close(self) -> None:
        """Fence every process that still runs, and remove all temporary state. May be called
        twice."""
        ...
