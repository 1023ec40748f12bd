"""Kills workers that must be proven dead, reports every death to the router, and kills routers that
hang.

A worker is killed if another worker needs proof of its death, if its step never ends, or if the
router has not heard from it for long. Only the launcher can prove a death; a timeout cannot. If it
has no proof, because a host does not answer, the worker's seat stays taken and the loss is
reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass

from twolane.deploy.errors import NotProvenError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Hosts, Launcher
from twolane.deploy.launch.router_clients import RouterClients
from twolane.deploy.process.handshake import Handle
from twolane.v1 import cluster_pb2

GONE = "gone"  # a value of WorkerStatus.state
UP = "up"  # a value of HostStatus.state
AWAY = "away"  # another
OFF = "C"  # class of proof: the host was switched off
_MOST_A_LOOK_S = 5.0  # that one look adds: a call's time, the pause between two, and some more


@dataclass(frozen=True, slots=True, kw_only=True)
class FencingConfig:
    """`poll_s`: between two looks. `hung_factor`: a worker is killed if its step takes this many
    times the time after which a step is late. `lost_s`: a worker is killed if the router has not
    known it, or has called it gone, for this long. `hung_router_s`: a router is killed if it runs
    and has answered nothing for this long."""

    poll_s: float = 1.0
    hung_factor: float = 2.0
    lost_s: float = 30.0
    hung_router_s: float = 30.0


class HungRouters:
    """Routers that run and answer nothing any more. One that refuses calls is not hung: it starts
    or stops, or the fault is the caller's. Nor is one that has never answered: calls may not get
    through to it. Only time in which this process looked on counts: a machine that was paused is no
    router's silence. `routers` returns those that run; `in_reach`: whether one's host answers, for
    else it may be the host that is silent; `kill` ends a router, and is told why."""

    def __init__(
        self,
        config: FencingConfig,
        routers: Callable[[], Sequence[Handle]],
        in_reach: Callable[[Handle], bool],
        kill: Callable[[Handle, str], Coroutine[None, None, None]],
    ) -> None:
        self._config = config
        self._routers = routers
        self._in_reach = in_reach
        self._kill = kill
        self._looked_at: float | None = None
        self._heard: set[tuple[str, int, int]] = set()  # incarnations that have answered
        self._silent_s: dict[tuple[str, int, int], float] = {}  # by incarnation
        self._killing: dict[tuple[str, int, int], asyncio.Task[None]] = {}

    def look(
        self, answering: Collection[str], silent: Collection[str], tasks: asyncio.TaskGroup
    ) -> None:
        """`answering`: the routers that answered the last call; `silent`: those that let its time
        pass. Kill who must be, as a task."""
        now = asyncio.get_running_loop().time()
        before = now if self._looked_at is None else self._looked_at
        passed_s, self._looked_at = min(now - before, _MOST_A_LOOK_S), now
        here = {its.key: its for its in self._routers()}
        self._heard = {key for key in here if key in self._heard or here[key].name in answering}
        running = {
            key: here[key]
            for key in self._heard
            if here[key].name in silent and self._in_reach(here[key])
        }
        # The first silent call adds nothing: it may have begun just before the router did not run.
        self._silent_s = {
            key: self._silent_s[key] + passed_s if key in self._silent_s else 0.0 for key in running
        }
        self._killing = {key: task for key, task in self._killing.items() if not task.done()}
        for key, silent_s in self._silent_s.items():
            if silent_s >= self._config.hung_router_s and key not in self._killing:
                why = f"it runs, but has answered nothing for {silent_s:.0f} s"
                self._killing[key] = tasks.create_task(self._kill(running[key], why))


class Fencing:
    """`look` again and again while the cluster is up. `workers` returns the workers that run,
    `routers` the routers."""

    def __init__(
        self,
        config: FencingConfig,
        launcher: Launcher,
        workers: Callable[[], Sequence[Handle]],
        tell: Callable[[Event], None],
        hosts: Hosts | None = None,
        routers: Callable[[], Sequence[Handle]] = list,
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._workers = workers
        self._tell = tell
        self._hosts = hosts
        self._dead: set[int] = set()  # every epoch of ours that is proven dead
        self._unreported: set[int] = set()  # dead epochs that the router may not know of
        self._present_at: dict[int, float] = {}  # when the router last had each running worker
        self._fencing: dict[int, asyncio.Task[None]] = {}
        self._off_reported: set[int] = set()  # epochs of class C that the router knows of
        self._silent: set[str] = set()  # hosts already reported as lost
        self._hung_routers = HungRouters(config, routers, self._is_in_reach, self.kill)

    def proven_dead(self, epoch: int) -> None:
        """Record a worker's death for the router. On hosts with agents, the agents report it."""
        if epoch:
            self._dead.add(epoch)
            if self._hosts is None:
                self._unreported.add(epoch)

    async def look(
        self,
        client: RouterClients,
        seen: Sequence[cluster_pb2.WorkerStatus],
        tasks: asyncio.TaskGroup,
        answering: Collection[str] = (),
        silent: Collection[str] = (),
    ) -> None:
        """Fence the workers that must be, as a task; `seen` is what routers know of workers now,
        and `answering` and `silent` are routers as `HungRouters` takes them. Raises
        `DeposedError`."""
        self._hung_routers.look(answering, silent, tasks)
        # a worker that is gone sends no reports, and its last one is old
        members = [member for member in seen if member.state != GONE]
        wanted = {epoch for member in members for epoch in member.load.fence_wanted}
        present = {member.worker.epoch for member in members}
        why = dict.fromkeys(wanted, "a peer needs proof that it does not write any more")
        why |= self._hung(members) | self._lost(present, is_news=bool(seen))
        for handle in self._workers():
            if handle.epoch in why and handle.epoch not in self._fencing:
                fence = self.kill(handle, why[handle.epoch])
                self._fencing[handle.epoch] = tasks.create_task(fence)
        await self._report(client, wanted)

    def _is_in_reach(self, router: Handle) -> bool:
        if self._hosts is None:
            return True
        up = [host.name for host in self._hosts.hosts() if host.state == UP]
        return router.host_name in up

    async def kill(self, handle: Handle, why: str) -> None:
        """Kill one process. The task that waits for it reports its end."""
        event = Event(kind=Kind.FENCED, name=handle.name, epoch=handle.epoch, text=why)
        self._tell(event)
        try:
            await self._launcher.fence(handle)
        except NotProvenError as error:
            text = f"not proven dead: {error}"
            self._tell(Event(kind=Kind.LOST, name=handle.name, epoch=handle.epoch, text=text))
            await asyncio.sleep(self._config.lost_s)
        self._fencing.pop(handle.epoch, None)  # from now on it may be fenced again

    async def _report(self, client: RouterClients, wanted: set[int]) -> None:
        if self._hosts is None:
            self._unreported |= wanted & self._dead
            for epoch in sorted(self._unreported):
                if await client.report_gone(epoch):
                    self._unreported.discard(epoch)
            return
        off = {*self._hosts.declared_dead}
        for epoch in sorted((off - self._off_reported) | (wanted & off)):
            if await client.report_gone(epoch, OFF):
                self._off_reported.add(epoch)
        running = {handle.epoch for handle in self._workers()}
        for epoch in sorted(wanted - off - running):
            await self._hosts.prove(epoch)

    def hosts(self) -> list[cluster_pb2.HostStatus]:
        """The hosts' status. Emits an event for each host that stopped or resumed answering."""
        hosts = [] if self._hosts is None else self._hosts.hosts()
        for host in hosts:
            if host.state == UP and host.name in self._silent:
                self._silent.discard(host.name)
                self._tell(Event(kind=Kind.FOUND, name=host.name, text="it answers again"))
            elif host.state not in (UP, AWAY) and host.name not in self._silent:
                self._silent.add(host.name)
                self._tell(Event(kind=Kind.LOST, name=host.name, text=_loss(host)))
        return hosts

    def _hung(self, members: Sequence[cluster_pb2.WorkerStatus]) -> dict[int, str]:
        """Workers whose step does not end, each with a message that says so."""
        return {
            member.worker.epoch: f"its step has not ended for {member.load.step_age_s:.0f} s"
            for member in members
            if member.load.step_age_s > self._config.hung_factor * member.load.step_bound_s > 0
        }

    def _lost(self, present: set[int], *, is_news: bool) -> dict[int, str]:
        """Running workers that the router has not heard from for long, each with a message: they
        are stopped, or stuck in a call that lets no other thread run. Nothing follows from a router
        that does not answer, or that has just restarted and knows no worker yet."""
        now = asyncio.get_running_loop().time()
        running = {handle.epoch for handle in self._workers()}
        seen = running if not is_news else present
        self._present_at = {
            epoch: now if epoch in seen else self._present_at.get(epoch, now) for epoch in running
        }
        return {
            epoch: f"it runs, but the router has not heard from it for {now - at:.0f} s"
            for epoch, at in self._present_at.items()
            if now - at > self._config.lost_s
        }


def _loss(host: cluster_pb2.HostStatus) -> str:
    """A message like `lost 2 GPUs (silent; no fence command): decode-0 decode-1`."""
    n, what = (host.gpus, "GPU") if host.gpus else (len(host.workers), "seat")
    names = " ".join(host.workers)
    return f"lost {n} {what}{'s' * (n != 1)} ({host.state}; {host.note}): {names}"
