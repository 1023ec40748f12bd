"""What an agent does, without a network: it starts, watches, ends and remembers processes.

    start ──▶ live ──▶ ended          ended is remembered with its proof
                ▲
    evidence on disk, of a process that another agent or Ray has started

Its state is the state folder's: the term, the evidence that each process leaves there, and in
`ended` what is proven dead. So an agent that is started again knows what its predecessor knew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from twolane.config import SOCKET_NAME
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.ended import CLASS_A, CLASS_B, Ended, EndedProcesses
from twolane.deploy.agent.term import OldTermError, Term, TermFile
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.launch.host_process import HostProcess
from twolane.deploy.launch.process_launcher import DEPLOY_COMMAND, ProcessLauncher
from twolane.deploy.process.evidence import Evidence, boot_id, pid_namespace, read_evidence
from twolane.deploy.process.handshake import Handle
from twolane.deploy.process.orphan import HEARTBEAT
from twolane.deploy.process.parent_death import end_group
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.kvtransfer.link.process_identity import open_pidfd, start_ticks

log = logging.getLogger(__name__)


class NeverHereError(Exception):
    """This host has no evidence that it was ever started here."""


@dataclass(frozen=True, slots=True)
class Live:
    """A process that serves."""

    evidence: Evidence
    handle: Handle


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What runs, and what has ended since the snapshot before."""

    live: tuple[Live, ...]
    ended: tuple[Ended, ...]


class Agent:
    """Used from one event loop. `run` it as long as it lives: the other methods need that."""

    def __init__(
        self,
        config: AgentConfig,
        report: Callable[[Ended], Awaitable[None]],
        *,
        command: Sequence[str] = DEPLOY_COMMAND,
    ) -> None:
        """`report` tells routers of a proof; it is called as a task of `run`. Raises OSError or
        ValueError for a state folder that cannot be used."""
        for folder in (config.state_dir, config.log_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.config = config
        self.boot_id = boot_id()
        self.terms = TermFile(config.state_dir / "term")
        self._report = report
        self._launcher = ProcessLauncher(
            config.log_dir, command=command, state_dir=config.state_dir
        )
        self._ended = EndedProcesses(config.state_dir / "ended")
        self._live: dict[str, Live] = {}  # by name
        self._starting: dict[str, tuple[ProcessSpec, asyncio.Task[Handle]]] = {}
        self._changed = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._starts_no_more = False
        self.ready = asyncio.Event()  # what its predecessor has left is adopted

    async def run(self) -> None:
        """Until cancelled. What serves goes on without us, what still starts ends."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while True:
                    (self.config.state_dir / HEARTBEAT).write_text(f"{time.monotonic_ns()}\n")
                    await self._adopt_what_is_there()
                    self.ready.set()
                    await asyncio.sleep(self.config.heartbeat_s)
        finally:
            for name in list(self._starting):
                await self._call_off(name)
            self._launcher.let_go()

    async def start(self, term: Term, spec: ProcessSpec) -> Live:
        """Start it; a former incarnation is killed first. Raises `OldTermError`, or `StartError`:
        then nothing of it is left. Cancelled, neither."""
        self.terms.check(term)
        if self._starts_no_more:  # guard: last start
            raise StartError(f"{spec.name}: its agent ends")
        await self._call_off(spec.name)
        self._live.pop(spec.name, None)  # `_watch` sees its end
        if isinstance(spec, RouterSpec):
            own = f"{SOCKET_NAME}.{spec.name}" if spec.shares_ports else SOCKET_NAME
            spec = replace(spec, admin_socket=str(self._socket_folder() / own))
        starting = asyncio.create_task(self._launcher.start(spec))
        self._starting[spec.name] = spec, starting
        try:
            handle = await starting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it has cancelled `starting`, too
                raise
            raise StartError(f"{spec.name}: it was fenced, or started again") from None
        finally:
            if self._starting.get(spec.name, (None, None))[1] is starting:
                del self._starting[spec.name]
        if term != self.terms.highest:  # guard: term at the end
            await self._launcher.fence(handle)
            raise OldTermError(f"{term} is over: this agent has seen {self.terms.highest}")
        evidence = next(
            each
            for each in read_evidence(self.config.state_dir)
            if (each.name, each.epoch, each.pid) == (handle.name, handle.epoch, handle.pid)
        )
        return self._watch(evidence, handle)

    async def stop(self, term: Term, name: str, pid: int, grace_s: float) -> None:
        """Ask it to end; after the grace, kill it. Returns when it has ended."""
        self.terms.check(term)
        live = self._live.get(name)
        if live is not None and live.handle.pid == pid:
            await self._launcher.stop(live.handle, grace_s)
            await self._until_ended(live)

    async def fence(
        self, term: Term | None, name: str, *, epoch: int = 0, pid: int = 0, boot: str = ""
    ) -> Ended:
        """Kill that incarnation and prove its end; its routers are told again. `boot` is the boot
        under which it ran, if the caller knows. Without a term it is an operator's.

        Raises `OldTermError`, `NeverHereError` or `NotProvenError`.
        """
        if term is not None:
            self.terms.check(term)
        for spec, starting in list(self._starting.values()):
            if spec.epoch == epoch != 0:
                await _cancelled(starting)
                return Ended(spec.name, epoch, 0, "was starting", CLASS_A)
        for live in list(self._live.values()):
            if _is(live.evidence, name, epoch, pid):
                await self._launcher.fence(live.handle)
                await self._until_ended(live)
        for evidence in read_evidence(self.config.state_dir):
            if _is(evidence, name, epoch, pid):
                await self._end(evidence)
        ended = self._ended.find(name, epoch, pid)
        if ended is not None:
            self._tell(ended)
            return ended
        if boot and boot != self.boot_id:
            return Ended(name, epoch, pid, "its host has booted since", CLASS_B)
        raise NeverHereError(f"{self.config.host_name} never started epoch {epoch:016x} of {name}")

    async def end_all(self) -> None:
        """Kill all that it has started or found, and start nothing any more. Returns when all are
        proven dead; raises `NotProvenError` when the others are."""
        self._starts_no_more = True
        for name in list(self._starting):
            await self._call_off(name)
        unproven = []
        for evidence in [*read_evidence(self.config.state_dir)]:
            try:
                await self.fence(None, evidence.name, epoch=evidence.epoch, pid=evidence.pid)
            except NotProvenError as error:
                unproven.append(str(error))
        if unproven:
            raise NotProvenError("; ".join(unproven))

    async def watch(self, term: Term) -> AsyncIterator[Snapshot]:
        """At once, at each change, and once a heartbeat. Raises `OldTermError` when it is over."""
        self.terms.check(term)
        seen = 0
        while True:
            changed = self._changed
            ended, seen = self._ended.since(seen)
            yield Snapshot(tuple(self._live.values()), tuple(ended))
            try:
                async with asyncio.timeout(self.config.heartbeat_s):
                    await changed.wait()
            except TimeoutError:
                pass
            if term != self.terms.highest:
                raise OldTermError(f"{term} is over: this agent has seen {self.terms.highest}")

    def _socket_folder(self) -> Path:
        """Where clients on this host look for the operators' socket. Raises `StartError`."""
        name = f"twolane-agent-{self.config.host_name}-{os.geteuid()}"
        folder = Path(tempfile.gettempdir()) / name
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                raise StartError(f"{folder} is not ours")
        except OSError as error:
            raise StartError(f"{folder}: {error.strerror}") from error
        return folder

    async def _call_off(self, name: str) -> None:
        _, starting = self._starting.get(name, (None, None))
        if starting is not None:
            await _cancelled(starting)

    async def _adopt_what_is_there(self) -> None:
        known = {(live.handle.name, live.handle.pid) for live in self._live.values()}
        ours = {(spec.name, spec.epoch) for spec, _ in self._starting.values()}
        for evidence in read_evidence(self.config.state_dir):
            its = evidence.name, evidence.epoch
            if (evidence.name, evidence.pid) in known or its in ours:
                continue
            try:
                process = self._open(evidence)
            except ProcessLookupError:
                await self._end(evidence)
                continue
            except NotProvenError as error:
                log.warning("%s", error)
                continue
            if evidence.ready is None:
                process.let_go()
                continue
            log.info("%s (epoch %016x) runs already", evidence.name, evidence.epoch)
            self._launcher.adopt(evidence.name, process)
            self._watch(evidence, evidence.handle(self.config.host_name))

    def _open(self, evidence: Evidence) -> HostProcess:
        """Raises ProcessLookupError if it has ended, `NotProvenError`."""
        if evidence.boot_id != self.boot_id:  # guard: own boot
            raise ProcessLookupError("the host has booted since")
        if evidence.pid_namespace != pid_namespace():  # guard: own PID namespace
            raise NotProvenError(
                f"{evidence.name} (epoch {evidence.epoch:016x}) ran in another PID namespace"
            )
        fd = open_pidfd(evidence.pid, evidence.start_ticks)
        if select.select([fd], [], [], 0)[0]:
            os.close(fd)
            raise ProcessLookupError("it waits to be reaped")
        return HostProcess(evidence.pid, fd, is_child=False)

    async def _end(self, evidence: Evidence) -> None:
        """Kill it if it lives, remember its end, and tell its routers."""
        proof_class, how = CLASS_A, "is gone"
        try:
            how = await self._open(evidence).kill()
        except ProcessLookupError:
            if evidence.boot_id != self.boot_id:
                proof_class, how = CLASS_B, "its host has booted since"
            elif _ticks_of(evidence.pid) in (
                None,
                evidence.start_ticks,
            ):  # the group is its own
                await end_group(evidence.pid)
        self._note_end(evidence, how, proof_class)

    def _watch(self, evidence: Evidence, handle: Handle) -> Live:
        live = self._live[handle.name] = Live(evidence, handle)
        assert self._tasks is not None
        self._tasks.create_task(self._wait(live), name=f"watch-{handle.name}")
        self._note_change()
        return live

    async def _wait(self, live: Live) -> None:
        how = await self._launcher.wait_exit(live.handle)
        if self._live.get(live.handle.name) is live:
            del self._live[live.handle.name]
        self._note_end(live.evidence, how, CLASS_A)

    async def _until_ended(self, live: Live) -> None:
        its = live.handle
        while self._ended.find(its.name, its.epoch, its.pid) is None:
            await self._changed.wait()

    def _note_end(self, evidence: Evidence, how: str, proof_class: str) -> None:
        ended = Ended(
            evidence.name, evidence.epoch, evidence.pid, how, proof_class, evidence.routers
        )
        self._ended.add(ended)
        (self.config.state_dir / evidence.file_name).unlink(missing_ok=True)
        log.info("%s (epoch %016x) %s: proof of class %s", *_words(ended))
        self._tell(ended)
        self._note_change()

    def _tell(self, ended: Ended) -> None:
        if ended.epoch and ended.routers:
            assert self._tasks is not None
            self._tasks.create_task(self._ask_report(ended), name=f"report-{ended.name}")

    async def _ask_report(self, ended: Ended) -> None:
        await self._report(ended)

    def _note_change(self) -> None:
        """Wake all watchers once."""
        self._changed.set()
        self._changed = asyncio.Event()


def _ticks_of(pid: int) -> int | None:
    """When the process of that number started, in clock ticks since boot; None: there is none."""
    try:
        return start_ticks(pid)
    except ProcessLookupError:
        return None


def _is(evidence: Evidence, name: str, epoch: int, pid: int) -> bool:
    """A worker by its epoch, a router by name and pid."""
    if epoch:
        return evidence.epoch == epoch
    return (evidence.name, evidence.epoch, evidence.pid) == (name, 0, pid)


def _words(ended: Ended) -> tuple[str, int, str, str]:
    return ended.name, ended.epoch, ended.how, ended.proof_class


async def _cancelled(task: asyncio.Task[Handle]) -> None:
    """Cancel it, and return when it has ended, however it does."""
    if not task.cancelling():  # a second time would cut its cleaning up short
        task.cancel()
    await asyncio.wait([task])
