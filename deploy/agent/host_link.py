"""What a controller knows of one host: what its agent tells each second, and since when it is
silent.

    up ◀──▶ silent ──▶ off        off: a proof of class C. Back up when its agent answers again

A handle's end is a future: it is set by the agent's word (class A or B), by another boot of the
host (B), by the host being switched off (C), and by nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from enum import StrEnum

import grpc

from twolane.deploy.agent.client import AgentClient, handle_of_process
from twolane.deploy.agent.ended import CLASS_B, CLASS_C
from twolane.deploy.agent.term import Term
from twolane.deploy.errors import DeposedError
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.security.credentials import Credentials
from twolane.v1 import agent_pb2

log = logging.getLogger(__name__)

Key = tuple[str, int, int]  # of an incarnation: name, epoch, pid


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """`silence_s`: without a word for so long, a host is silent."""

    silence_s: float = 3.0
    reconnect_s: float = 0.3
    connect_s: float = 5.0


class HostState(StrEnum):
    UP = "up"
    SILENT = "silent"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended, in words, and the class of the proof."""

    how: str
    proof_class: str


class HostLink:
    """`run` it as long as the controller lives."""

    def __init__(
        self, host: HostSpec, credentials: Credentials, term: Term, config: LinkConfig
    ) -> None:
        self.host = host
        self._credentials = credentials
        self._term = term
        self.live: dict[str, agent_pb2.HostProcess] = {}  # by name, as the agent told last
        self.boot_id = ""
        self.changed = asyncio.Event()  # set at each word, and replaced
        self._config = config
        self._clock = asyncio.get_running_loop().time
        self._heard_at: float | None = None
        self._off_at: float | None = None
        self._up_at = self._clock()
        self._ends: dict[Key, asyncio.Future[End]] = {}
        self._declared: set[Key] = set()  # dead by class C: what of them appears is a zombie
        self._deposed: DeposedError | None = None

    @property
    def state(self) -> HostState:
        if self._off_at is not None:
            return HostState.OFF
        if self._heard_at is None:
            return HostState.SILENT
        is_silent = self._clock() - self._heard_at > self._config.silence_s
        return HostState.SILENT if is_silent else HostState.UP

    @property
    def is_deposed(self) -> bool:
        return self._deposed is not None

    @property
    def for_s(self) -> float:
        """Since when it is in that state."""
        since = {
            HostState.UP: self._up_at,
            HostState.SILENT: self._up_at if self._heard_at is None else self._heard_at,
            HostState.OFF: self._off_at or 0.0,
        }
        return self._clock() - since[self.state]

    async def run(self) -> None:
        """Listen to the agent, again whenever it is lost. Ends when the controller is deposed; then
        whoever waits for an end gets `DeposedError`."""
        while self._deposed is None:
            try:
                async with self.client() as client:
                    async for message in client.watch():
                        self._hear(message)
                        await self._fence_zombies(client)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    self.depose(error)
            await asyncio.sleep(self._config.reconnect_s)

    def client(self) -> AgentClient:
        """For a call or a few, with the certificate of today."""
        return AgentClient(self.host.agent, self._credentials, self._term)

    async def until_heard(self) -> bool:
        """Wait for a first or a new word; False if none comes in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.connect_s):
                while self.state is not HostState.UP:
                    self.check()
                    await self.changed.wait()
        return self.state is HostState.UP

    def check(self) -> None:
        """Raises `DeposedError`."""
        if self._deposed is not None:
            raise self._deposed

    def depose(self, error: grpc.aio.AioRpcError) -> None:
        self._deposed = DeposedError(f"{self.host.name}: {error.details()}")
        for end in self._ends.values():
            if not end.done():
                end.set_exception(self._deposed)
                end.exception()  # nobody may be waiting
        self._note_change()

    def end_of(self, handle: Handle) -> asyncio.Future[End]:
        """Of a process that was started or found on this host."""
        if handle.key not in self._ends:
            self._ends[handle.key] = asyncio.get_running_loop().create_future()
        return self._ends[handle.key]

    def note_end(self, key: Key, how: str, proof_class: str) -> None:
        """It is proven dead."""
        its = self.live.get(key[0])
        if its is not None and (its.name, its.epoch, its.pid) == key:
            del self.live[key[0]]
        end = self._ends.setdefault(key, asyncio.get_running_loop().create_future())
        if not end.done():
            end.set_result(End(how, proof_class))

    def switched_off(self, how: str) -> list[int]:
        """The host is off: all that ran there is dead (class C). Returns the epochs."""
        self._off_at = self._clock()
        running = [key for key, end in self._ends.items() if not end.done()]
        self._declared |= {*running}
        for key in running:
            self.note_end(key, how, CLASS_C)
        self.live.clear()
        self._note_change()
        return [epoch for _, epoch, _ in running if epoch]

    def _hear(self, message: agent_pb2.WatchResponse) -> None:
        if self.state is not HostState.UP:
            self._up_at = self._clock()
            log.info("%s answers", self.host.name)
        self._heard_at, self._off_at = self._clock(), None
        if self.boot_id and self.boot_id != message.boot_id:
            for key in [key for key, end in self._ends.items() if not end.done()]:
                self.note_end(key, "its host has booted since", CLASS_B)
        self.boot_id = message.boot_id
        self.live = {process.name: process for process in message.live}
        for process in message.live:
            self.end_of(handle_of_process(process, self.host.name))
        for ended in message.ended:
            key = ended.name, ended.epoch, ended.pid
            if key in self._ends:
                self.note_end(key, ended.how, ended.proof_class)
        self._note_change()

    async def _fence_zombies(self, client: AgentClient) -> None:
        """A host that was called off, and was not: what runs there was declared dead."""
        for process in list(self.live.values()):
            if (process.name, process.epoch, process.pid) in self._declared:  # guard: zombie
                log.error("%s was called off and runs %s", self.host.name, process.name)
                await client.fence(process.name, epoch=process.epoch, pid=process.pid)

    def _note_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
