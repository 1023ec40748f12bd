"""An agent without its network interface: it starts, watches, ends and remembers processes.

    start ──▶ live ──▶ ended          each end is stored with its proof
                ▲
    evidence on disk, of a process that an earlier agent or Ray has started

All state is in the state folder: the term, the evidence that each process writes there, and in
`ended` the processes that are proven dead. So a restarted agent knows what its predecessor knew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace

from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.ended import CLASS_A, CLASS_B, Ended, EndedProcesses, NeverHereError
from twolane.deploy.agent.kept import KeptDesired
from twolane.deploy.agent.term import OldTermError, Term, TermFile
from twolane.deploy.errors import NotProvenError, StartError, first_error
from twolane.deploy.launch.host_process import HostProcess
from twolane.deploy.launch.process_launcher import DEPLOY_COMMAND, ProcessLauncher
from twolane.deploy.process.evidence import (
    Evidence,
    boot_id,
    file_name,
    json_files,
    pid_namespace,
    read_evidence,
)
from twolane.deploy.process.handshake import Handle
from twolane.deploy.process.orphan import HEARTBEAT
from twolane.deploy.process.parent_death import end_group
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.kvtransfer.link.process_identity import open_pidfd, start_ticks
from twolane.v1.agent_pb2 import Desired

log = logging.getLogger(__name__)

READY = "ready"  # a file in the state folder, see `Agent.run`


@dataclass(frozen=True, slots=True)
class Live:
    """A process that runs and serves."""

    evidence: Evidence
    handle: Handle


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The running processes, and those that have ended since the previous snapshot."""

    live: tuple[Live, ...]
    ended: tuple[Ended, ...]


class Agent:
    """Used from one event loop. `run` must be running while other methods are called."""

    def __init__(
        self,
        config: AgentConfig,
        report: Callable[[Ended], Coroutine[None, None, None]],
        *,
        command: Sequence[str] = DEPLOY_COMMAND,
    ) -> None:
        """`report` reports a proven death to routers; it is called in a task of `run`. Raises
        OSError or ValueError if the state folder cannot be used."""
        for folder in (config.state_dir, config.log_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.config = config
        self.boot_id = boot_id()
        self.incarnation = config.host_uid or self.boot_id  # of the host
        self.terms = TermFile(config.state_dir / "term")
        self.kept = KeptDesired(config.state_dir / "desired")
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
        self.is_over = False  # all is proven dead, and nothing is started any more
        self.ready = asyncio.Event()  # set when the predecessor's processes are adopted

    async def run(self) -> None:
        """Run until cancelled. Serving processes then keep running without the agent; those still
        starting are ended.

        Each heartbeat leaves two files in the state folder, for probes: `heartbeat`, and `ready`
        with the names of the processes. The latter is missing while one starts, while a worker that
        is desired here does not serve, or none serves where it is not known what is desired, and
        from `stop_all` on. Raises OSError if the folder cannot be written to.
        """
        try:
            async with asyncio.TaskGroup() as self._tasks:
                while True:
                    (self.config.state_dir / HEARTBEAT).write_text(f"{time.monotonic_ns()}\n")
                    await self._adopt_what_is_there()
                    self._write_ready()
                    self.ready.set()
                    await asyncio.sleep(self.config.heartbeat_s)
        except* OSError as errors:
            raise first_error(errors) from None
        finally:
            for name in list(self._starting):
                await self._call_off(name)
            self._launcher.let_go()

    async def start(self, term: Term, spec: ProcessSpec) -> Live:
        """Start a process, after killing a former incarnation. Raises `OldTermError` or
        `StartError`. In both cases, and if cancelled, nothing of the process is left."""
        self.terms.check(term)
        while spec.name in self._starting:  # others may wait for the same one's end
            await self._call_off(spec.name)
            self.terms.check(term)
        if self._is_ending():  # guard: last start
            raise StartError(f"{spec.name}: its agent is ending")
        self._live.pop(spec.name, None)  # `_wait` still notes its end
        if isinstance(spec, RouterSpec):
            spec = replace(spec, admin_socket=str(self.config.admin_socket_of(spec)))
        starting = asyncio.create_task(self._launcher.start(spec), name=str(term))
        self._starting[spec.name] = spec, starting
        try:
            async with asyncio.timeout(self.config.start_s):
                try:
                    handle = await starting
                except asyncio.CancelledError:
                    await self._end_start(starting)
                    raise
        except TimeoutError:
            within = f"within {self.config.start_s:g} s"
            raise StartError(f"{spec.name} did not serve {within}: it was killed") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # `starting` was cancelled with it
                raise
            raise StartError(f"{spec.name}: it was fenced or restarted") from None
        finally:
            if self._starting.get(spec.name, (None, None))[1] is starting:
                del self._starting[spec.name]
        if term != self.terms.highest:  # guard: term at the end
            await self._launcher.fence(handle)
            raise OldTermError(f"{term} is over: this agent has seen {self.terms.highest}")
        if self._is_ending():  # guard: up in a stop
            await self._launcher.fence(handle)
            raise StartError(f"{spec.name}: its agent is ending")
        for evidence in read_evidence(self.config.state_dir):
            if evidence.is_of(*handle.key):
                return self._watch(evidence, handle)
        await self._launcher.fence(handle)
        raise StartError(f"{spec.name} was killed: its evidence cannot be read")

    async def stop(self, term: Term, name: str, pid: int, grace_s: float) -> None:
        """Send SIGTERM to the process, and kill it after `grace_s`. Returns when it has ended."""
        self.terms.check(term)
        live = self._live.get(name)
        if live is not None and live.handle.pid == pid:
            await self._launcher.stop(live.handle, grace_s)
            await self._until_ended(live)

    async def fence(
        self, term: Term | None, name: str, *, epoch: int = 0, pid: int = 0, boot: str = ""
    ) -> Ended:
        """Kill that incarnation and prove its end, which is reported to its routers again. `boot`
        is the host's incarnation under which it ran, if known. `term` is None for an operator's
        command. Without an epoch and a pid, whatever runs or starts of a router is meant.

        Raises `OldTermError`, `NeverHereError` or `NotProvenError`.
        """
        if term is not None:
            self.terms.check(term)
        for spec, starting in list(self._starting.values()):
            if spec.epoch == epoch != 0 and not await self._end_start(starting):
                return Ended(spec.name, epoch, 0, "was starting", CLASS_A)
        for live in list(self._live.values()):
            if live.evidence.is_of(name, epoch, pid):
                await self._launcher.fence(live.handle)
                await self._until_ended(live)
        for evidence in read_evidence(self.config.state_dir):
            if evidence.is_of(name, epoch, pid):
                await self._end(evidence)
        ended = self._ended.find(name, epoch, pid)
        if ended is not None:
            self._tell(ended)
            return ended
        if boot and boot != self.incarnation:
            if self.config.host_uid:  # guard: another pod of the name
                raise NotProvenError(
                    f"{name} ran in another pod of the name {self.config.host_name}"
                )
            return Ended(name, epoch, pid, "its host has booted since", CLASS_B)
        if not (epoch or pid):
            return await self._fence_router(name)
        unread = self.config.state_dir / file_name(name, epoch, pid)
        if unread.exists():  # guard: unread evidence
            raise NotProvenError(f"{unread} cannot be read, so {name} may still run")
        raise NeverHereError(f"{self.config.host_name} never started epoch {epoch:016x} of {name}")

    async def _fence_router(self, name: str) -> Ended:
        """As `fence`, of a router whose pid is not known: the answer to its start was lost."""
        ended = None
        spec, _ = self._starting.get(name, (None, None))
        if isinstance(spec, RouterSpec):
            await self._call_off(name)
            ended = Ended(name, 0, 0, "was starting", CLASS_A)
        for path in json_files(self.config.state_dir):
            its, _, pid = path.stem.rpartition("-")
            if its == name and pid.isdecimal():
                ended = await self.fence(None, name, pid=int(pid))
        if ended is None:
            raise NeverHereError(f"{self.config.host_name} runs no {name}")
        return ended

    async def stop_all(self, grace_s: float) -> None:
        """Let all processes finish their requests for up to `grace_s`, then kill those left. Those
        still starting are ended at once, and none is started from now on. Returns and raises as
        `end_all` does."""
        self._starts_no_more = True
        self._write_ready()
        async with asyncio.TaskGroup() as tasks:
            for name in list(self._starting):
                tasks.create_task(self._call_off(name))
            for live in list(self._live.values()):
                tasks.create_task(self._launcher.stop(live.handle, grace_s))
        await self.end_all()
        self.is_over = True
        self._note_change()

    async def end_all(self) -> None:
        """Kill all processes, and start none from now on. Returns when all are proven dead. Raises
        `NotProvenError` if some cannot be, after the others are."""
        self._starts_no_more = True
        for name in list(self._starting):
            await self._call_off(name)
        unproven = []
        for evidence in [*read_evidence(self.config.state_dir)]:
            try:
                await self.fence(None, evidence.name, epoch=evidence.epoch, pid=evidence.pid)
            except NotProvenError as error:
                unproven.append(str(error))
        if not unproven and (left := json_files(self.config.state_dir)):
            unproven = [f"{path} cannot be read: its process may still run" for path in left]
        if unproven:
            raise NotProvenError("; ".join(unproven))

    def keep_desired(self, term: Term, desired: Desired) -> None:
        """For the controllers after this one. Raises `OldTermError`."""
        self.terms.check(term)
        self.kept.write(desired)

    async def watch(self, term: Term) -> AsyncIterator[Snapshot]:
        """Yield a snapshot at once, at each change, and once per heartbeat. Raises `OldTermError`
        when `term` is not the highest any more."""
        self.terms.check(term)
        for name in [n for n, (_, its) in self._starting.items() if its.get_name() != str(term)]:
            await self._call_off(name)  # of a controller that this one has replaced
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

    def _is_ending(self) -> bool:
        return self._starts_no_more

    def _write_ready(self) -> None:
        path = self.config.state_dir / READY
        wanted = self.kept.wanted_on(self.config.host_name)
        serves = bool(self._live) if wanted is None else wanted <= self._live.keys()
        if serves and not self._starting and not self._starts_no_more:
            path.write_text("".join(f"{name}\n" for name in sorted(self._live)))
        else:
            path.unlink(missing_ok=True)

    async def _call_off(self, name: str) -> None:
        its = self._starting.get(name)
        while its is not None and self._starting.get(name) is its:  # until its `start` returns
            await self._end_start(its[1])

    async def _end_start(self, starting: asyncio.Task[Handle]) -> bool:
        """Return when nothing of it is left: whether its process had come up, and was killed."""
        if not starting.cancelling():  # a second cancellation would interrupt its cleanup
            starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled() or starting.exception() is not None:
            return False
        await self._launcher.fence(starting.result())
        return True

    async def _adopt_what_is_there(self) -> None:
        known = {(live.handle.name, live.handle.pid) for live in self._live.values()}
        ours = {(spec.name, spec.epoch) for spec, _ in self._starting.values()}
        for evidence in read_evidence(self.config.state_dir):
            if (evidence.name, evidence.pid) in known or (evidence.name, evidence.epoch) in ours:
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
            log.info("%s (epoch %016x) is already running", evidence.name, evidence.epoch)
            self._launcher.adopt(evidence.name, process)
            self._watch(evidence, evidence.handle(self.config.host_name))

    def _open(self, evidence: Evidence) -> HostProcess:
        """Open a process by its evidence. Raises ProcessLookupError if it has ended, and
        `NotProvenError` if that cannot be known."""
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
        """Kill the process if it is alive, store its end, and report it to its routers."""
        proof_class, how = CLASS_A, "is gone"
        try:
            how = await self._open(evidence).kill()
        except ProcessLookupError:
            if evidence.boot_id != self.boot_id:
                proof_class, how = CLASS_B, "its host has booted since"
            # Its group's id was not reused.
            elif _ticks_of(evidence.pid) in (None, evidence.start_ticks):
                await end_group(evidence.pid)
        self._note_end(evidence, how, proof_class)

    def _watch(self, evidence: Evidence, handle: Handle) -> Live:
        live = self._live[handle.name] = Live(evidence, handle)
        self._ended.forget(*handle.key)
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
        its = Ended(evidence.name, evidence.epoch, evidence.pid, how, proof_class, evidence.routers)
        self._ended.add(its)
        (self.config.state_dir / evidence.file_name).unlink(missing_ok=True)
        log.info("%s (epoch %016x) %s: proof of class %s", its.name, its.epoch, how, proof_class)
        self._tell(its)
        self._note_change()

    def _tell(self, ended: Ended) -> None:
        if ended.epoch and ended.routers:
            assert self._tasks is not None
            self._tasks.create_task(self._report(ended), name=f"report-{ended.name}")

    def _note_change(self) -> None:
        """Wake all watchers once."""
        self._changed.set()
        self._changed = asyncio.Event()


def _ticks_of(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    try:
        return start_ticks(pid)
    except ProcessLookupError:
        return None
