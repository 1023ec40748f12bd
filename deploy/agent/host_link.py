"""What a controller knows about one host: what the agent reports each second, and how long the host
has been silent.

    up ◀──▶ silent ──▶ off        off: a proof of class C. Up again when the agent answers
     ▲
     └──▶ away                    a host that comes and goes, while nothing of ours can run on it

The end of each process is a future. Only these set it: the agent's report (class A or B), a reboot
of the host (B), and the host being switched off (C).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from enum import StrEnum

import grpc

from twolane.deploy.agent.client import AgentClient, handle_of_process
from twolane.deploy.agent.ended import CLASS_A, CLASS_B, CLASS_C
from twolane.deploy.agent.term import Term
from twolane.deploy.controller.desired import InPod
from twolane.deploy.errors import DeposedError
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.rpc.listen import host_of
from twolane.security.credentials import Credentials, Protection
from twolane.v1 import agent_pb2

log = logging.getLogger(__name__)

Key = tuple[str, int, int]  # of an incarnation: name, epoch, pid


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """A host is silent if its agent has sent nothing for `silence_s`. Its fence command is killed,
    and has proven nothing, if it has not ended after `fence_command_s`. A controller that
    takes over waits `remember_s` for silent hosts while no other knows what was desired."""

    silence_s: float = 3.0
    reconnect_s: float = 0.3
    connect_s: float = 5.0
    remember_s: float = 10.0
    fence_command_s: float = 60.0


class HostState(StrEnum):
    UP = "up"
    SILENT = "silent"
    OFF = "off"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended, as text, and the class of the proof."""

    how: str
    proof_class: str


class HostLink:
    """The controller's connection to one agent. `run` must be running as long as the controller
    is."""

    def __init__(
        self, host: HostSpec, credentials: Credentials, term: Term, config: LinkConfig
    ) -> None:
        self.host = host
        self._credentials = credentials
        self._term = term
        self.live: dict[str, agent_pb2.HostProcess] = {}  # by name, as last reported by the agent
        self.boot_id = ""
        self.changed = asyncio.Event()  # set and replaced at each message
        self._config = config
        self._clock = asyncio.get_running_loop().time
        self._heard_at: float | None = None
        self._off_at: float | None = None
        self._up_at = self._clock()
        self._ends: dict[Key, asyncio.Future[End]] = {}
        self._told_why = ""
        self._declared: set[Key] = set()  # dead by class C; if one appears again, it is fenced
        self._deposed: DeposedError | None = None
        self._watching: asyncio.Task[None] | None = None
        self._boots: dict[Key, str] = {}  # where each process was seen
        self.ended_boots: set[str] = set()  # of which nothing runs any more
        self.lost_pods: set[str] = set()  # boots that another pod has followed, without a proof
        self.is_pod = host.made is not None and host.made.is_pod
        self.may_run = False  # whether something may run here that we have not heard of
        self.nodes: dict[str, str] = {}  # of pods, by boot id
        self.earlier: list[InPod] = []  # what an earlier controller has known here
        self.n_starting = 0
        self.unknown: dict[str, tuple[int, str]] = {}  # starts without an outcome: epoch, boot id
        self.desired: agent_pb2.Desired | None = None  # to be kept there; None: nothing so far
        self.kept: agent_pb2.Desired | None = None  # there, as far as we know

    @property
    def state(self) -> HostState:
        heard_at = self._heard_at if self._off_at is None else None
        if heard_at is not None and self._clock() - heard_at <= self._config.silence_s:
            return HostState.UP
        if self._is_empty:  # guard: an empty host
            return HostState.AWAY
        return HostState.SILENT if self._off_at is None else HostState.OFF

    @property
    def _is_empty(self) -> bool:
        """Whether it is a host that comes and goes, and nothing of ours can run on it."""
        all_ended = all(end.done() for end in self._ends.values())
        return self.host.made is not None and all_ended and not (self.may_run or self.n_starting)

    def is_another_pod_than(self, boot_id: str) -> bool:
        """Whether this is a pod, and not that one: then it knows nothing of what ran there."""
        return self.is_pod and self.boot_id != boot_id

    @property
    def is_insecure(self) -> bool:
        """Whether we call the agent without TLS over the network: then it listens without."""
        if not self.host.agent:  # it is not there
            return False
        host = host_of(self.host.agent)
        return self._credentials.protection(host, "--listen") is Protection.INSECURE

    @property
    def is_deposed(self) -> bool:
        return self._deposed is not None

    @property
    def has_been_heard(self) -> bool:
        """Also before it was silent."""
        return self._heard_at is not None

    @property
    def for_s(self) -> float:
        """How long the host has been in its state, in seconds."""
        since = {
            HostState.UP: self._up_at,
            HostState.SILENT: self._up_at if self._heard_at is None else self._heard_at,
            HostState.OFF: self._off_at or 0.0,
            HostState.AWAY: self._up_at if self._heard_at is None else self._heard_at,
        }
        return self._clock() - since[self.state]

    async def run(self) -> None:
        """Watch the agent, and reconnect whenever the connection is lost. Returns when the
        controller is deposed; then those waiting for an end get `DeposedError`. Raises only what is
        a bug of ours."""
        while self._deposed is None:
            if not self.host.agent:  # it is not there
                await self.changed.wait()
                continue
            self._watching = asyncio.create_task(self._watch())
            try:
                await asyncio.wait([self._watching])
            finally:
                self._watching.cancel()
            if not self._watching.cancelled():  # the host has moved
                self._watching.result()
            await asyncio.sleep(self._config.reconnect_s)

    async def _watch(self) -> None:
        self.kept = None
        try:
            async with self.client() as client:
                async for message in client.watch():
                    self._hear(message)
                    await self._fence_zombies(client)
                    await self._keep_desired(client)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self.depose(error)
            elif error.code() is not grpc.StatusCode.UNAVAILABLE:  # it is no silence
                self._tell_why(error.details() or error.code().name)

    def _tell_why(self, why: str) -> None:
        """Log why the agent cannot be watched, once for each reason in turn."""
        if why != self._told_why:
            self._told_why = why
            log.error("%s cannot be watched: %s", self.host.name, why)

    def moved(self, host: HostSpec) -> None:
        """The host's addresses are these from now on; empty ones: it is gone."""
        self.host = host
        if self._watching is not None:
            self._watching.cancel()
        if not host.agent:
            self._heard_at = None
        self._note_change()

    def client(self) -> AgentClient:
        """A client for a few calls, with the present certificate."""
        return AgentClient(self.host.agent, self._credentials, self._term)

    async def until_heard(self) -> bool:
        """Wait until the host is up. False if it does not answer in time; a host that comes and
        goes has all the time that the caller has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self.host.made else self._config.connect_s):
                while self.state is not HostState.UP:
                    self.check()
                    await self.changed.wait()
        return self.state is HostState.UP

    async def until_boot(self, boot_id: str) -> bool:
        """Wait until the host has reported from that boot. False if it does not in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.connect_s):
                while self.boot_id != boot_id:
                    self.check()
                    await self.changed.wait()
        return self.boot_id == boot_id

    def found(self) -> list[agent_pb2.HostProcess]:
        """What runs there and is not declared dead."""
        return [
            its
            for its in self.live.values()
            if (its.name, its.epoch, its.pid) not in self._declared
        ]

    def check(self) -> None:
        """Raise `DeposedError` if another controller has taken over."""
        if self._deposed is not None:
            raise self._deposed

    def depose(self, error: grpc.aio.AioRpcError) -> None:
        self._deposed = DeposedError(f"{self.host.name}: {error.details()}")
        for end in self._ends.values():
            if not end.done():
                end.set_exception(self._deposed)
                end.exception()  # mark it as retrieved: there may be no waiter
        self._note_change()

    def end_of(self, handle: Handle) -> asyncio.Future[End]:
        """The end of a process that was started or found on this host."""
        if handle.key not in self._ends:
            self._ends[handle.key] = asyncio.get_running_loop().create_future()
        return self._ends[handle.key]

    def runs(self, handle: Handle) -> None:
        """It was started or found in the host's present boot."""
        if not self.end_of(handle).done():
            self._boots.setdefault(handle.key, self.boot_id)

    def note_end(self, key: Key, how: str, proof_class: str) -> None:
        """Record that a process is proven dead."""
        its = self.live.get(key[0])
        if its is not None and (its.name, its.epoch, its.pid) == key:
            del self.live[key[0]]
        end = self._ends.setdefault(key, asyncio.get_running_loop().create_future())
        if not end.done():
            end.set_result(End(how, proof_class))
        self._boots.pop(key, None)
        self._note_change()

    def boot_ended(self, boot_id: str, how: str, proof_class: str) -> list[int]:
        """Record that nothing of that boot of the host runs any more. Returns the epochs of the
        workers that are proven dead by that."""
        self.ended_boots.add(boot_id)
        self.lost_pods.discard(boot_id)
        self.unknown = {name: its for name, its in self.unknown.items() if its[1] != boot_id}
        dead = [key for key, its in self._boots.items() if its == boot_id]
        for key in dead:
            self.note_end(key, how, proof_class)
        return [epoch for _, epoch, _ in dead if epoch]

    def switched_off(self, how: str) -> list[int]:
        """Record that the host is off: every process that ran there is dead (class C). Returns the
        epochs of its workers."""
        self._off_at = self._clock()
        running = [key for key, end in self._ends.items() if not end.done()]
        self._declared |= {*running}
        self.may_run = False
        self.unknown.clear()
        for key in running:
            self.note_end(key, how, CLASS_C)
        self.live.clear()
        self._note_change()
        return [epoch for _, epoch, _ in running if epoch]

    def _hear(self, message: agent_pb2.WatchResponse) -> None:
        if self.state is not HostState.UP:
            self._up_at = self._clock()
            log.info("%s answers", self.host.name)
            self._told_why = ""
        self._heard_at, self._off_at = self._clock(), None
        if not message.is_over:
            self.ended_boots.discard(message.boot_id)  # another agent, under the same kernel
        before, self.boot_id = self.boot_id, message.boot_id
        self.is_pod = self.is_pod or message.is_pod
        is_another = before not in ("", message.boot_id)
        if is_another and before not in self.ended_boots and self.is_pod:
            self.lost_pods.add(before)
        if is_another and not self.is_another_pod_than(before):  # guard: another pod
            for key in [key for key, end in self._ends.items() if not end.done()]:
                self.note_end(key, "its host has booted since", CLASS_B)
        self.may_run = False
        self._remember_earlier()
        self.live = {process.name: process for process in message.live}
        for process in message.live:
            handle = handle_of_process(process, self.host.name)
            if not self.end_of(handle).done():
                self._boots[handle.key] = message.boot_id
        for ended in message.ended:
            key = ended.name, ended.epoch, ended.pid
            if key in self._ends:
                self.note_end(key, ended.how, ended.proof_class)
        if message.is_over:
            self.boot_ended(message.boot_id, "its agent has ended all", CLASS_A)
        self._note_change()

    def _remember_earlier(self) -> None:
        """What ran in an earlier pod is lost, as another pod of the name is there now. Of the same
        pod its agent knows."""
        for its in self.earlier:
            if self.is_another_pod_than(its.boot_id) and its.boot_id not in self.ended_boots:
                key = its.name, its.epoch, its.pid
                self._ends.setdefault(key, asyncio.get_running_loop().create_future())
                self._boots[key] = its.boot_id
                self.nodes[its.boot_id] = its.node
                self.lost_pods.add(its.boot_id)
        self.earlier.clear()

    def lost(self) -> list[Key]:
        """What ran in earlier pods, and is not proven dead."""
        return [key for key, boot in self._boots.items() if boot != self.boot_id]

    def in_pods(self) -> list[InPod]:
        """The workers that run in pods, for the controller that takes over."""
        known = [
            InPod(
                name=name,
                epoch=epoch,
                pid=pid,
                host=self.host.name,
                boot_id=boot,
                node=self.nodes.get(boot, ""),
            )
            for (name, epoch, pid), boot in self._boots.items()
            if self.is_pod and epoch  # a router's end need not be proven
        ]
        return known + self.earlier

    async def _keep_desired(self, client: AgentClient) -> None:
        """Give it to a host that does not have it: one that came, or was silent, meanwhile. A
        failure is logged, and tried again with the next message."""
        if (value := self.desired) is None or value is self.kept:
            return
        try:
            await client.keep_desired(value)
            self.kept = value
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise
            log.warning("%s keeps nothing: %s", self.host.name, error.details())

    async def _fence_zombies(self, client: AgentClient) -> None:
        """Kill processes that were declared dead and still run, because the host was not off after
        all."""
        for process in list(self.live.values()):
            if (process.name, process.epoch, process.pid) in self._declared:  # guard: zombie
                log.error("%s was declared off, but runs %s", self.host.name, process.name)
                await client.fence(process.name, epoch=process.epoch, pid=process.pid)

    def _note_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def lost_handle(key: Key, host_name: str) -> Handle:
    """Of a process of which nothing but its end will be known."""
    name, epoch, pid = key
    return Handle(
        name=name, epoch=epoch, endpoint="", metrics_endpoint="", pid=pid, host_name=host_name
    )
