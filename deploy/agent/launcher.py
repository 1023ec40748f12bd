"""`Launcher` over the hosts of a cluster, by way of their agents.

What an agent has kept running is adopted by its name, so a controller that is started again finds
its cluster. A host that is silent proves nothing: nothing of it is called dead, and nothing is
started in its place, until its agent answers, or the host is switched off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Self, TypeVar

import grpc

from twolane.deploy.agent.client import AgentClient, handle_of_process
from twolane.deploy.agent.host_link import HostLink, HostState, LinkConfig
from twolane.deploy.agent.term import Term
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.process.evidence import digest
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.deploy.spec.specs import ProcessSpec
from twolane.security.credentials import Credentials
from twolane.v1 import agent_pb2, cluster_pb2

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")
_RESULT = agent_pb2.FenceResponse
_ASK_AGAIN_S = 1.0
_NOW_S = 0.5  # for an answer of a host that an operator has seen off


class AgentLauncher:
    """A controller's launcher. Made by `connected`, closed by `close`."""

    def __init__(
        self, hosts: Sequence[HostSpec], credentials: Credentials, term: Term, config: LinkConfig
    ) -> None:
        self.term = term
        self._links = {host.name: HostLink(host, credentials, term, config) for host in hosts}
        self._tasks = [
            asyncio.create_task(link.run(), name=f"watch-{name}")
            for name, link in self._links.items()
        ]
        self._handles: dict[str, Handle] = {}  # the latest incarnation of each name
        self._seats: dict[str, tuple[str, int]] = {}  # of each name: its host, and how many GPUs
        self._switching = {name: asyncio.Lock() for name in self._links}
        self._is_stopping = False
        self._outlives = False
        self.offered: dict[str, tuple[str, ...]] = {}  # GPUs, by host
        self.declared_dead: dict[int, str] = {}  # epochs that are dead by class C, and their hosts

    @classmethod
    async def connected(
        cls, hosts: Sequence[HostSpec], credentials: Credentials, config: LinkConfig | None = None
    ) -> Self:
        """With a term above all that the hosts have seen, and their GPUs. Raises `StartError` if
        none of them answers, or one under another name."""
        config = config or LinkConfig()
        answers = await asyncio.gather(*(_describe(host, credentials, config) for host in hosts))
        found = {host.name: its for host, its in zip(hosts, answers, strict=True) if its}
        if not found:
            raise StartError(f"no agent answers at {', '.join(host.agent for host in hosts)}")
        for host in hosts:
            its = found.get(host.name)
            if its is not None and its.host != host.name:
                raise StartError(
                    f"the agent at {host.agent} is that of {its.host}, not {host.name}"
                )
        highest = max(its.controller.term for its in found.values())
        launcher = cls(hosts, credentials, Term(highest + 1, secrets.token_hex(8)), config)
        launcher.offered = {name: tuple(its.gpus) for name, its in found.items()}
        await asyncio.gather(*(launcher._links[name].until_heard() for name in found))
        return launcher

    def running(self) -> set[str]:
        """The names of what agents have kept running."""
        return {name for link in self._links.values() for name in link.live}

    async def end_others(self, names: Collection[str], grace_s: float) -> None:
        """Stop what runs and is not of this cluster, as it is configured now."""
        async with asyncio.TaskGroup() as tasks:
            for link in self._links.values():
                for process in list(link.live.values()):
                    if process.name not in names:
                        handle = handle_of_process(process, link.host.name)
                        tasks.create_task(
                            self._call(
                                link, partial(AgentClient.stop, handle=handle, grace_s=grace_s)
                            )
                        )

    async def start(self, spec: ProcessSpec) -> Handle:
        link = self._links[spec.host_name]
        self._seats[spec.name] = spec.host_name, len(getattr(spec, "devices", ()))
        if not await link.until_heard():
            raise StartError(f"{spec.name}: {link.host.name} ({link.host.agent}) is silent")
        await self._end_elsewhere(spec.name, link)
        handle = await self._adopted(spec, link) or await self._started(spec, link)
        link.end_of(handle)
        self._handles[spec.name] = handle
        return handle

    async def wait_exit(self, handle: Handle) -> str:
        end = await asyncio.shield(self._links[handle.host_name].end_of(handle))
        return f"{end.how} (proof of class {end.proof_class})"

    async def fence(self, handle: Handle) -> None:
        link = self._links[handle.host_name]
        link.check()
        if link.end_of(handle).done():
            return
        if link.state is HostState.UP:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await self._fence(link, handle)
                if answer.result != _RESULT.RESULT_FENCED:
                    raise NotProvenError(f"{link.host.name}: {answer.why}")
                link.note_end(handle.key, answer.how, answer.proof_class)
                return
        await self._switch_off(link)

    async def stop(self, handle: Handle, grace_s: float) -> None:
        self._is_stopping = True
        link = self._links[handle.host_name]
        if link.end_of(handle).done():
            return
        if link.state is not HostState.UP:
            raise NotProvenError(f"{link.host.name} is silent")
        try:
            await self._call(link, partial(AgentClient.stop, handle=handle, grace_s=grace_s))
        except grpc.aio.AioRpcError as error:
            raise NotProvenError(f"{link.host.name}: {error.details()}") from error
        async with asyncio.timeout(grace_s):
            await asyncio.shield(link.end_of(handle))

    async def close(self) -> None:
        """Fences what this controller has started. But a cluster that was found, or has come up,
        runs on if nobody has asked to stop it, and one that is another controller's in any case.
        """
        is_ours = not any(link.is_deposed for link in self._links.values())
        if is_ours and (self._is_stopping or not self._outlives):
            for handle in self._handles.values():
                with contextlib.suppress(NotProvenError, DeposedError):
                    await self.fence(handle)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def outlive(self) -> None:
        """From now on a failure of this controller ends no process."""
        self._outlives = True

    def hosts(self) -> list[cluster_pb2.HostStatus]:
        """Every host and who has a seat there."""
        return [self._status(link) for link in self._links.values()]

    async def say_off(self, host_name: str) -> str:
        """An operator has seen that the host is off: a proof of class C. Raises `NotProvenError`
        for one that still answers, whose agent proves deaths itself."""
        link = self._links.get(host_name)
        if link is None:
            raise NotProvenError(f"there is no host {host_name}, but {', '.join(self._links)}")
        if link.state is HostState.UP and await self._answers(link):  # guard: a host that answers
            raise NotProvenError(f"{host_name} answers: fence its workers, its agent proves that")
        self._note_off(link, "its host is off, as an operator has seen")
        return f"{host_name} is off: proof of class C"

    async def _answers(self, link: HostLink) -> bool:
        """Now: a host that went off is called up for as long as its silence may be a pause."""
        try:
            async with link.client() as client:
                await client.describe(within_s=_NOW_S)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def prove(self, epoch: int) -> None:
        """Have the agent that has it tell the routers again that this epoch is dead; one that a
        peer wants dead and that is not ours is killed."""
        for link in self._links.values():
            if link.state is HostState.UP:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await self._call(link, partial(AgentClient.fence, name="", epoch=epoch))

    async def _adopted(self, spec: ProcessSpec, link: HostLink) -> Handle | None:
        """What its agent has kept running, if that is alike; else it is stopped."""
        process = link.live.get(spec.name)
        if process is None:
            return None
        handle = handle_of_process(process, link.host.name)
        if process.digest == digest(spec):
            self._outlives = True
            return handle
        log.info("%s runs with another configuration: it is replaced", spec.name)
        try:
            grace_s = spec.timing.stop_grace_s
            await self._call(link, partial(AgentClient.stop, handle=handle, grace_s=grace_s))
        except grpc.aio.AioRpcError as error:
            raise StartError(f"{spec.name} still runs: {error.details()}") from error
        return None

    async def _started(self, spec: ProcessSpec, link: HostLink) -> Handle:
        try:
            answer = await self._call(link, partial(AgentClient.start, spec=spec))
        except grpc.aio.AioRpcError as error:
            return await self._found_out(spec, link, error.details() or error.code().name)
        except asyncio.CancelledError:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._call(link, partial(AgentClient.fence, name=spec.name, epoch=spec.epoch))
            raise
        if answer.error:
            raise StartError(answer.error)
        return handle_of_process(answer.process, link.host.name)

    async def _found_out(self, spec: ProcessSpec, link: HostLink, why: str) -> Handle:
        """The answer to a start was lost. Returns the process if it serves; raises `StartError`
        when it is proven that nothing is left of it, however long that takes."""
        while True:
            await asyncio.sleep(_ASK_AGAIN_S)
            link.check()
            if link.state is HostState.OFF:
                raise StartError(f"{spec.name}: {link.host.name} was switched off")
            if link.state is not HostState.UP:
                continue
            process = link.live.get(spec.name)
            if process is not None and process.epoch == spec.epoch:
                return handle_of_process(process, link.host.name)
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await self._call(
                    link, partial(AgentClient.fence, name=spec.name, epoch=spec.epoch)
                )
                if answer.result != _RESULT.RESULT_NOT_PROVEN:
                    raise StartError(f"{spec.name}: {why}")

    async def _end_elsewhere(self, name: str, here: HostLink) -> None:
        """One incarnation at a time, wherever it was placed before. Raises `StartError`."""
        for link in self._links.values():
            process = link.live.get(name)
            if process is None or link is here:
                continue
            try:
                await self.fence(handle_of_process(process, link.host.name))
            except NotProvenError as error:
                raise StartError(f"{name} may still run: {error}") from error

    async def _fence(self, link: HostLink, handle: Handle) -> agent_pb2.FenceResponse:
        return await self._call(
            link,
            partial(
                AgentClient.fence,
                name=handle.name,
                epoch=handle.epoch,
                pid=handle.pid,
                boot_id=link.boot_id,
            ),
        )

    async def _call(
        self, link: HostLink, call: Callable[[AgentClient], Awaitable[AnswerT]]
    ) -> AnswerT:
        """One call of its agent. Raises `DeposedError`, and AioRpcError."""
        try:
            async with link.client() as client:
                return await call(client)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                link.depose(error)
                link.check()
            raise

    async def _switch_off(self, link: HostLink) -> None:
        """By its fence command. Raises `NotProvenError`."""
        host = link.host
        async with self._switching[host.name]:
            if link.state is HostState.OFF:
                return
            if not host.fence_command:
                raise NotProvenError(f"{host.name} silent; no fence command")
            process = await asyncio.create_subprocess_shell(
                host.fence_command, env={**os.environ, "TWOLANE_HOST": host.name}
            )
            code = await process.wait()
            if code:  # guard: fence command
                raise NotProvenError(f"{host.name} silent; its fence command ended with {code}")
            self._note_off(link, "its host was switched off by the fence command")

    def _note_off(self, link: HostLink, how: str) -> None:
        log.warning("%s: %s", link.host.name, how)
        for epoch in link.switched_off(how):
            self.declared_dead[epoch] = link.host.name

    def _status(self, link: HostLink) -> cluster_pb2.HostStatus:
        gpus = {name: n for name, (host, n) in self._seats.items() if host == link.host.name}
        note = ""
        if link.state is not HostState.UP:
            note = "fence command" if link.host.fence_command else "no fence command"
        return cluster_pb2.HostStatus(
            name=link.host.name,
            state=link.state.value,
            for_s=link.for_s,
            workers=sorted(gpus),
            gpus=sum(gpus.values()),
            note=note,
        )


async def _describe(
    host: HostSpec, credentials: Credentials, config: LinkConfig
) -> agent_pb2.DescribeResponse | None:
    """None: nobody answers there in time. Raises `StartError` for one that refuses us."""
    async with AgentClient(host.agent, credentials, Term(0, "")) as client:
        try:
            return await client.describe(within_s=config.connect_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return None
            raise StartError(f"the agent at {host.agent}: {error.details()}") from error
