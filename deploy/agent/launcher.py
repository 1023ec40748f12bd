"""A `Launcher` that starts processes on several hosts through their agents.

Processes that agents have kept running are adopted by name, so a restarted controller finds its
cluster. A silent host proves nothing: none of its processes counts as dead, and none is started
elsewhere, until its agent answers or the host is switched off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Self, TypeVar

import grpc

from twolane.deploy.agent.client import AgentClient, handle_of_process
from twolane.deploy.agent.describe import describe_all, read_latest_log
from twolane.deploy.agent.ended import CLASS_A
from twolane.deploy.agent.ending import end_elsewhere, end_processes, fence_host, may_still_run
from twolane.deploy.agent.host_link import HostLink, HostState, LinkConfig, lost_handle
from twolane.deploy.agent.host_status import status_of
from twolane.deploy.agent.kept import latest, parsed
from twolane.deploy.agent.kept_on_hosts import KeptOnHosts
from twolane.deploy.agent.made_hosts import MadeHosts, addressed
from twolane.deploy.agent.revisions import check_revision, fit_on_hosts
from twolane.deploy.agent.switch import Switch
from twolane.deploy.agent.term import Term
from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.errors import NoAgentError, NotProvenError, StartError
from twolane.deploy.process.evidence import digest
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.deploy.spec.revision import Fit
from twolane.deploy.spec.specs import ModelSpec, ProcessSpec
from twolane.security.credentials import Credentials
from twolane.v1 import acts_pb2, agent_pb2, cluster_pb2

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")
_RESULT = agent_pb2.FenceResponse
_ASK_AGAIN_S = 1.0


class AgentLauncher:
    """The launcher of a controller. Create it with `connected`, and close it with `close`."""

    def __init__(
        self, hosts: Sequence[HostSpec], credentials: Credentials, term: Term, config: LinkConfig
    ) -> None:
        self.term = term
        self._links = {host.name: HostLink(host, credentials, term, config) for host in hosts}
        self._switch = Switch(self._links, config)
        self._tasks = [
            asyncio.create_task(link.run(), name=f"watch-{name}")
            for name, link in self._links.items()
        ]
        self._handles: dict[str, Handle] = {}  # the latest incarnation of each name
        self._seats: dict[str, tuple[str, int]] = {}  # by name: the host, and the number of GPUs
        self._is_stopping = False
        self._kept_on_hosts = KeptOnHosts(self._links, term, self._call)
        self._outlives = False
        self.left = ""
        self.offered: dict[str, tuple[str, ...]] = {}  # GPUs, by host
        self.made = MadeHosts(self._links, self._switch.declared_dead)
        self.desired: Desired | None = None  # as the controller before has left it

    @classmethod
    async def connected(
        cls, hosts: Sequence[HostSpec], credentials: Credentials, config: LinkConfig | None = None
    ) -> Self:
        """Connect to the agents, with a term above every term that they have seen. Raises
        `StartError` if none answers, or if one has another host name than expected."""
        config = config or LinkConfig()
        there = [host for host in hosts if host.agent]
        found = await describe_all(there, credentials, config)
        if not found:
            raise NoAgentError(f"no agent answers at {', '.join(host.agent for host in there)}")
        for host in there:
            its = found.get(host.name)
            if its is not None and its.host != host.name:
                raise StartError(
                    f"the agent at {host.agent} is the one of {its.host}, not of {host.name}"
                )
        highest = max(its.controller.term for its in found.values())
        kept = latest(its.desired for its in found.values() if its.HasField("desired"))
        try:
            desired = parsed(kept)
        except ValueError as error:
            raise StartError(
                f"what this cluster is to be was written by another version: {error}"
            ) from error
        launcher = cls(hosts, credentials, Term(highest + 1, secrets.token_hex(8)), config)
        launcher.offered = {name: tuple(its.gpus) for name, its in found.items()}
        launcher.desired = desired
        launcher._kept_on_hosts.begin(desired, max(its.desired.revision for its in found.values()))
        launcher.made.take_over(launcher.desired, found)
        for link in launcher._links.values():
            link.desired = kept
        try:
            await asyncio.gather(*(launcher._links[name].until_heard() for name in found))
        except BaseException:
            await launcher.close()
            raise
        return launcher

    @property
    def controller(self) -> tuple[str, int]:
        return self.term.controller, self.term.number

    def vacate(self, name: str) -> None:
        self._seats.pop(name, None)
        self._handles.pop(name, None)

    async def save(self, desired: Desired) -> None:
        await self._kept_on_hosts.save(desired)

    def want(self, hosts: Collection[str]) -> None:
        self.made.want(hosts)

    def running(self) -> set[str]:
        """The names of the processes that agents have kept running."""
        return {name for link in self._links.values() for name in link.live}

    def found(self) -> list[Seat]:
        return [
            Seat(
                name=its.name,
                pool=its.pool,
                host=link.host.name,
                devices=tuple(its.devices),
                roles=tuple(its.roles),
                model_dir=its.model_dir,
            )
            for link in self._links.values()
            for its in link.found()
            if its.pool
        ]

    async def end_others(self, names: Collection[str], grace_s: float) -> None:
        """Stop what runs and is not in `names`, the cluster's present configuration. Raises
        `NotProvenError` if some may still run, after the others have ended, and `DeposedError`."""

        async def stop(link: HostLink, handle: Handle) -> None:
            await self._call(link, partial(AgentClient.stop, handle=handle, grace_s=grace_s))

        if unproven := await end_processes(self._links.values(), names, stop):
            told = (f"{name} may still run: {why}" for name, why in unproven.items())
            raise NotProvenError("; ".join(told))

    async def start(self, spec: ProcessSpec) -> Handle:
        link = self._links[spec.host_name]
        self._seats[spec.name] = spec.host_name, len(getattr(spec, "devices", ()))
        if not await link.until_heard():
            raise StartError(f"{spec.name}: {link.host.name} ({link.host.agent}) is silent")
        spec = addressed(spec, link.host)
        await end_elsewhere(self._links.values(), spec.name, link, self.fence)
        lost = self._lost(spec.name)
        if lost is not None:
            self._handles[spec.name] = lost
            return lost
        handle = await self._adopted(spec, link)
        if handle is None:
            await check_revision(spec, link)
            handle = await self._started(spec, link)
        return handle

    def _lost(self, name: str) -> Handle | None:
        """An incarnation that an earlier controller has known, in a pod that is gone without a
        proof: it counts as running."""
        for link in self._links.values():
            for key in link.lost():
                if key[0] == name:
                    log.warning("%s (epoch %016x) ran in another pod of the name", *key[:2])
                    return lost_handle(key, link.host.name)
        return None

    async def wait_exit(self, handle: Handle) -> str:
        end = await asyncio.shield(self._links[handle.host_name].end_of(handle))
        return f"{end.how} (proof of class {end.proof_class})"

    async def fence(self, handle: Handle) -> None:
        link = self._links[handle.host_name]
        link.check()
        if link.end_of(handle).done():
            return
        if link.state is not HostState.UP:
            await self._switch.off(link)
            return
        try:
            answer = await self._fence(link, handle)
        except grpc.aio.AioRpcError as error:
            # A host that was heard a moment ago is not switched off: others run there.
            text = error.details() or error.code().name
            raise NotProvenError(f"{link.host.name}: {text}") from error
        if answer.result != _RESULT.RESULT_FENCED:
            raise NotProvenError(f"{link.host.name}: {answer.why}")
        link.note_end(handle.key, answer.how, answer.proof_class)

    async def stop(self, handle: Handle, grace_s: float) -> None:
        link = self._links[handle.host_name]
        if link.end_of(handle).done():
            return
        if link.state is not HostState.UP:
            raise NotProvenError(f"{link.host.name} is silent")
        try:
            await self._call(link, partial(AgentClient.stop, handle=handle, grace_s=grace_s))
        except grpc.aio.AioRpcError as error:
            raise NotProvenError(f"{link.host.name}: {error.details()}") from error
        await asyncio.wait({end := link.end_of(handle)}, timeout=grace_s)
        if not end.done():
            raise NotProvenError(f"{link.host.name} does not say whether {handle.name} has ended")
        end.result()

    async def close(self) -> None:
        """Fence the processes that this controller has started. A cluster that was adopted or has
        come up keeps running unless a stop was requested; one that another controller has taken
        over always keeps running. Raises as `watch` does."""
        is_ours = not any(link.is_deposed for link in self._links.values())
        if is_ours and (self._is_stopping or not self._outlives):
            async with asyncio.TaskGroup() as tasks:
                for link in self._links.values():
                    tasks.create_task(fence_host(link, self._handles, self.fence))
                    if link.unknown and link.state is HostState.UP:
                        tasks.create_task(self._prove_unknown(link, *link.unknown))
            self.left = may_still_run(self._links, self._handles.values())
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.watch()

    async def watch(self) -> None:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if not task.cancelled():
                task.result()

    def outlive(self) -> None:
        """Let the processes keep running if this controller fails from now on."""
        self._outlives = True

    async def ends(self) -> None:
        """The cluster is to stop: nothing outlives this controller, and the next cluster begins as
        its topology says."""
        self._is_stopping = True
        await self._kept_on_hosts.forget()

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        return await read_latest_log(self._links, request)

    async def fit_of(
        self, model: ModelSpec, model_dir: str, *, loads: Collection[str], others: Collection[str]
    ) -> Fit:
        return await fit_on_hosts(self._links, model, model_dir, loads=loads, others=others)

    def hosts(self) -> list[cluster_pb2.HostStatus]:
        """Every host that is there or should be, with the workers that have a seat there."""
        found = [status_of(link, self._seats) for link in self._links.values()]
        return [host for host in found if host.workers or host.state != HostState.AWAY.value]

    async def say_off(self, host_name: str) -> str:
        return await self._switch.believe(host_name)

    @property
    def lost(self) -> Collection[int]:
        return [key[1] for link in self._links.values() for key in link.lost()]

    def proven(self, epochs: Collection[int]) -> None:
        for link in self._links.values():
            for key in link.lost():
                if key[1] in epochs:
                    link.note_end(key, "has ended, as its pod's agent told a router", CLASS_A)

    @property
    def counters(self) -> Counter[str]:
        return self.made.counters

    @property
    def declared_dead(self) -> Collection[int]:
        return self._switch.declared_dead

    async def prove(self, epoch: int) -> None:
        """Have the agents kill this epoch if it still runs, and report its death to the routers
        again."""
        for link in self._links.values():
            if link.state is HostState.UP:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await self._call(link, partial(AgentClient.fence, name="", epoch=epoch))

    async def _adopted(self, spec: ProcessSpec, link: HostLink) -> Handle | None:
        """The process that the agent has kept running, if its configuration is equal. Otherwise
        that process is stopped, and None returned."""
        process = link.live.get(spec.name)
        if process is None:
            return None
        handle = handle_of_process(process, link.host.name)
        if process.digest == digest(spec):
            self._outlives = True
            await self._runs(handle, link)
            return handle
        log.info("%s runs with another configuration and is replaced", spec.name)
        try:
            grace_s = spec.timing.stop_grace_s
            await self._call(link, partial(AgentClient.stop, handle=handle, grace_s=grace_s))
        except grpc.aio.AioRpcError as error:
            raise StartError(f"{spec.name} still runs: {error.details()}") from error
        return None

    async def _started(self, spec: ProcessSpec, link: HostLink) -> Handle:
        link.n_starting += 1
        link.unknown[spec.name] = spec.epoch, link.boot_id
        try:
            handle = await self._outcome(spec, link)
            await self._runs(handle, link)
        except asyncio.CancelledError:
            await self._prove_unknown(link, spec.name)
            raise
        except StartError:
            link.unknown.pop(spec.name, None)
            raise
        finally:
            link.n_starting -= 1
        link.unknown.pop(spec.name, None)
        return handle

    async def _runs(self, handle: Handle, link: HostLink) -> None:
        """Note that it runs there, at once; a pod also for the controller after this one."""
        self._handles[handle.name] = handle
        link.runs(handle)
        if link.is_pod:
            await self._kept_on_hosts.save_again()

    async def _outcome(self, spec: ProcessSpec, link: HostLink) -> Handle:
        boot_id = link.boot_id
        try:
            answer = await self._call(link, partial(AgentClient.start, spec=spec))
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
            return await self._found_out(spec, link, boot_id, why)
        if answer.error:
            raise StartError(answer.error)
        return handle_of_process(answer.process, link.host.name)

    async def _prove_unknown(self, link: HostLink, *names: str) -> None:
        """Kill what starts of these names, which have no outcome, may have left there."""
        link.may_run = True
        for name in names:
            its = link.unknown.get(name)
            if its is not None and await self._is_ended(link, name, *its):
                link.unknown.pop(name, None)
        link.may_run = bool(link.unknown)

    async def _is_ended(self, link: HostLink, name: str, epoch: int, boot_id: str) -> bool:
        """Kill what a start in that boot may have left: whether nothing is."""
        fence = partial(AgentClient.fence, name=name, epoch=epoch, boot_id=boot_id)
        with contextlib.suppress(grpc.aio.AioRpcError):
            if link.state is HostState.UP:
                return (await self._call(link, fence)).result != _RESULT.RESULT_NOT_PROVEN
        return False

    async def _found_out(self, spec: ProcessSpec, link: HostLink, boot_id: str, why: str) -> Handle:
        """Find out what became of a start whose answer was lost. Returns the process if it serves.
        Raises `StartError` once it is proven that nothing is left of it, however long that
        takes."""
        while True:
            await asyncio.sleep(_ASK_AGAIN_S)
            link.check()
            if link.state is HostState.OFF or boot_id in link.ended_boots:
                raise StartError(f"{spec.name}: nothing of it is left on {link.host.name}")
            if link.state is not HostState.UP or link.is_another_pod_than(boot_id):
                continue
            process = link.live.get(spec.name)
            if process is not None and process.epoch == spec.epoch:
                return handle_of_process(process, link.host.name)
            if await self._is_ended(link, spec.name, spec.epoch, boot_id):
                raise StartError(f"{spec.name}: {why}")

    async def _fence(self, link: HostLink, handle: Handle) -> agent_pb2.FenceResponse:
        name, epoch, pid = handle.key
        fence = partial(AgentClient.fence, name=name, epoch=epoch, pid=pid, boot_id=link.boot_id)
        return await self._call(link, fence)

    async def _call(
        self, link: HostLink, call: Callable[[AgentClient], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Make one call to the host's agent. Raises `DeposedError`, and AioRpcError."""
        try:
            async with link.client() as client:
                return await call(client)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                link.depose(error)
                link.check()
            raise
