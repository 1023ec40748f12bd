"""The actor that runs a cluster's supervisor. If it dies, Ray restarts it; it then finds the
agents, takes a higher term than its predecessor, and adopts the running processes."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.agent.supervision import supervisor_over
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.deploy.launch.events import Event, History, Kind
from twolane.deploy.launch.supervisor import Supervisor
from twolane.deploy.process.child import log_to_stderr
from twolane.deploy.process.scratch import make_scratch
from twolane.deploy.ray_cluster.agents import READY_S, Agents, HostPlan
from twolane.deploy.ray_cluster.connection import (
    CONTROLLER,
    bearing_with_ray,
    kill_actor,
    was_made_again,
)
from twolane.deploy.ray_cluster.made_nodes import keep_made, made_nodes
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.rpc.listen import join

log = logging.getLogger(__name__)

_LOOK_S = 2.0  # between two checks of Ray's nodes
_AGAIN_S = 5.0  # for the existing agents, if this controller was restarted
_POLL_S = 1.0  # how long a caller waits for a new event


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The arguments of a controller, passed as JSON. The cluster's hosts on Ray follow from
    `hosts`."""

    cluster: ClusterSpec
    hosts: tuple[HostPlan, ...]
    share_gpus: bool = False


def beside_ray(cluster: ClusterSpec) -> tuple[HostSpec, ...]:
    """The hosts that are no nodes of the Ray, and have agents of their own: they run routers."""
    return tuple(host for host in cluster.hosts if host.made is None)


class ControllerActor:
    """The controller. Its methods may be called concurrently."""

    def __init__(self, plan: str) -> None:
        self._plan = from_json(ClusterPlan, plan)
        self._is_again = was_made_again()  # if so, the cluster may be up
        log_to_stderr(self._plan.cluster.log_level)
        self._agents = Agents(self._plan.hosts, self._plan.cluster.host_sets)
        self._made = made_nodes(self._plan.cluster, self._plan.hosts)
        self._news = threading.Condition()
        self._events = History()
        self._is_over = False
        self._is_asked = False  # a caller has called `stop`, and will kill this actor
        self._loop = asyncio.new_event_loop()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def events(self, after: int) -> tuple[int, list[str]]:
        """The number of the next event, and those from number `after` on that are kept, as JSON
        (`History`); waits up to a second for one."""
        with self._news:
            if self._events.n <= after and not self._is_over:
                self._news.wait(_POLL_S)
            return self._events.n, self._events.since(after)

    def plan(self) -> str:
        """The plan as JSON: to end the cluster, a caller needs it if this actor is lost."""
        return to_json(self._plan)

    def stop(self) -> list[str]:
        """Stop all processes gracefully, then end the agents and what they still run. Returns the
        hosts that could not be reached. The caller then kills this actor."""
        self._is_asked = True
        with suppress(RuntimeError):  # the cluster has failed, and its event loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        return self._end()

    def _end(self) -> list[str]:
        """End all agents. Returns the hosts that could not be reached."""
        return sorted([*self._made.end(), *self._agents.end()])

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._hold())
            except (StartError, DeposedError) as error:
                self._tell(Event(kind=Kind.FAILED, text=str(error)))
            except NotProvenError as error:  # at a stop, which answers with the silent hosts
                log.warning("%s", error)
            except BaseException:
                log.exception("the controller broke")
                os._exit(1)  # Ray restarts the actor, which adopts the running processes
        with self._news:
            self._is_over = True
            self._news.notify_all()
        # An operator has stopped the cluster at this host.
        if self._stop.is_set() and not self._is_asked:
            self._end()
            kill_actor(CONTROLLER)

    async def _hold(self) -> None:
        launcher, supervisor = await self._connected()
        keeper = threading.Thread(target=_again_and_again(self._agents.keep), daemon=True)
        keeper.start()
        making = asyncio.create_task(keep_made(launcher.made, self._made))
        making.add_done_callback(_break_with)
        folder = make_scratch()
        try:
            door = ControllerDoor(supervisor, self._stop.set, self._tell)
            async with open_controller_door(door, folder):
                await supervisor.run(self._stop, self._hurry)
        finally:
            making.cancel()
            shutil.rmtree(folder, ignore_errors=True)

    async def _connected(self) -> tuple[AgentLauncher, Supervisor]:
        """Connect to the agents that answer. Raises `StartError` if a new cluster cannot come up;
        for a cluster that was up, keeps trying, whatever is missing now."""
        cluster, is_up = self._placed(), self._is_again
        while True:
            try:
                await asyncio.to_thread(self._agents.start, _AGAIN_S if self._is_again else READY_S)
                launcher = await AgentLauncher.connected(cluster.hosts, cluster.credentials)
                is_up = self._is_again and bool(launcher.running())
                try:
                    settled = settled_on(cluster, launcher.offered, share=self._plan.share_gpus)
                except StartError:
                    await launcher.close()
                    raise
                return launcher, await supervisor_over(launcher, settled, self._tell)
            except StartError as error:
                if not is_up or self._stop.is_set():
                    raise
                log.error("%s", error)
            await asyncio.sleep(_LOOK_S)

    def _placed(self) -> ClusterSpec:
        """The cluster with the addresses of its hosts."""
        hosts = tuple(
            HostSpec(
                name=host.agent.host_name,
                agent=join(host.agent.ip, host.agent.port),
                bind_host=host.agent.ip,
                advertise_host="",
                seats=host.seats,
                fence_command=host.fence_command,
            )
            for host in self._plan.hosts
        )
        cluster = self._plan.cluster
        made = (host for its in cluster.host_sets for host in its.hosts())
        return replace(cluster, hosts=(*beside_ray(cluster), *hosts, *made))

    def _tell(self, event: Event) -> None:
        log.info("%s", event.to_json())
        with self._news:
            self._events.add(event)
            self._news.notify_all()


def _break_with(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("hosts that come and go are not kept any more", exc_info=task.exception())
        os._exit(1)  # Ray restarts the actor, which adopts the running processes


def _again_and_again(look: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        while True:
            threading.Event().wait(_LOOK_S)
            try:
                with bearing_with_ray("agents of the cluster"):
                    look()
            except Exception:
                log.exception("agents are not kept any more")
                os._exit(1)  # Ray restarts the actor, which adopts the running processes

    return run
