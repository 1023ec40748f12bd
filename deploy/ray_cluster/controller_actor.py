"""The actor that holds a cluster's supervisor. Ray makes it again where it dies: then it finds the
agents, takes a higher term than its predecessor, and adopts what runs."""

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
from twolane.deploy.errors import DeposedError, StartError
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.supervisor import Supervisor
from twolane.deploy.process.child import log_to_stderr
from twolane.deploy.process.scratch import make_scratch
from twolane.deploy.ray_cluster.agents import READY_S, Agents, HostPlan
from twolane.deploy.ray_cluster.connection import CONTROLLER, kill_actor, was_made_again
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.rpc.listen import join

log = logging.getLogger(__name__)

_LOOK_S = 2.0  # between two looks at Ray's nodes
_AGAIN_S = 5.0  # for agents that were there before this controller was made again
_POLL_S = 1.0  # that a caller waits for news


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What a controller is made with, as JSON. The cluster's hosts follow from `hosts`."""

    cluster: ClusterSpec
    hosts: tuple[HostPlan, ...]
    share_gpus: bool = False


class ControllerActor:
    """Its methods may be called at the same time."""

    def __init__(self, plan: str) -> None:
        self._plan = from_json(ClusterPlan, plan)
        self._is_again = was_made_again()  # then the cluster may be up
        log_to_stderr(self._plan.cluster.log_level)
        self._agents = Agents(self._plan.hosts)
        self._news = threading.Condition()
        self._events: list[str] = []
        self._is_over = False
        self._is_asked = False  # to stop, by a caller, who will kill this actor
        self._loop = asyncio.new_event_loop()
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def events(self, after: int) -> list[str]:
        """Those from that number on, as JSON; waits a second for one."""
        with self._news:
            if len(self._events) <= after and not self._is_over:
                self._news.wait(_POLL_S)
            return self._events[after:]

    def plan(self) -> str:
        """As it was given: whoever ends the cluster needs it where this actor is lost."""
        return to_json(self._plan)

    def stop(self) -> list[str]:
        """Stop all processes with grace, then end the agents and what they still run. Returns the
        hosts that could not be reached. The caller kills this actor then."""
        self._is_asked = True
        with suppress(RuntimeError):  # the cluster has failed, and its event loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        return self._agents.end()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._hold())
            except (StartError, DeposedError) as error:
                self._tell(Event(kind=Kind.FAILED, text=str(error)))
            except BaseException:
                log.exception("the controller broke")
                os._exit(1)  # Ray makes another, which adopts what runs
        with self._news:
            self._is_over = True
            self._news.notify_all()
        if self._stop.is_set() and not self._is_asked:  # an operator has stopped it from here
            self._agents.end()
            kill_actor(CONTROLLER)

    async def _hold(self) -> None:
        launcher, cluster = await self._connected()
        names = {cluster.router().name, *(worker.name for worker in cluster.workers(""))}
        attaches = bool(names & launcher.running())
        await launcher.end_others(names, cluster.timing.stop_grace_s)
        supervisor = Supervisor(cluster, launcher, self._tell, hosts=launcher, attaches=attaches)
        keeper = threading.Thread(target=_again_and_again(self._agents.keep), daemon=True)
        keeper.start()
        folder = make_scratch()
        try:
            door = ControllerDoor(supervisor, self._stop.set, self._tell)
            async with open_controller_door(door, folder):
                await supervisor.run(self._stop, self._hurry)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _connected(self) -> tuple[AgentLauncher, ClusterSpec]:
        """With the agents that answer. Raises `StartError` for a cluster that does not come up; for
        one that was up it waits, whatever is missing now."""
        cluster, is_up = self._placed(), self._is_again
        while True:
            try:
                await asyncio.to_thread(self._agents.start, _AGAIN_S if self._is_again else READY_S)
                launcher = await AgentLauncher.connected(cluster.hosts, cluster.credentials)
                try:
                    share = self._plan.share_gpus
                    return launcher, settled_on(cluster, launcher.offered, share=share)
                except StartError:
                    is_up = self._is_again and bool(launcher.running())
                    await launcher.close()
                    raise
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
            )
            for host in self._plan.hosts
        )
        return replace(self._plan.cluster, hosts=hosts)

    def _tell(self, event: Event) -> None:
        log.info("%s", event.to_json())
        with self._news:
            self._events.append(event.to_json())
            self._news.notify_all()


def _again_and_again(look: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        from ray.exceptions import RayError

        while True:
            threading.Event().wait(_LOOK_S)
            with suppress(RayError, RuntimeError, ConnectionError, TimeoutError):  # GCS is away
                look()

    return run
