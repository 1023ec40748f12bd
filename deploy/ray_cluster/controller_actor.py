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
from twolane.deploy.ray_cluster.agents import Agents, HostPlan, end_agents, kill_actor
from twolane.deploy.ray_cluster.connection import CONTROLLER
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.spec_json import from_json
from twolane.rpc.listen import join

log = logging.getLogger(__name__)

_LOOK_S = 2.0  # between two looks at Ray's nodes
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
        log_to_stderr(self._plan.cluster.log_level)
        self._agents = Agents(self._plan.hosts)
        self._news = threading.Condition()
        self._events: list[str] = []
        self._is_over = False
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

    def secret(self) -> str:
        """The cluster's."""
        return self._plan.cluster.secret

    def stop(self) -> None:
        """Stop all processes with grace, and end their agents; then this actor ends, too."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._hold())
            except (StartError, DeposedError) as error:
                self._tell(Event(kind=Kind.FAILED, text=str(error)))
            except BaseException:
                log.exception("the controller broke")
                os._exit(1)  # Ray makes another, which adopts what runs
        if self._stop.is_set():
            end_agents()
        with self._news:
            self._is_over = True
            self._news.notify_all()
        if self._stop.is_set():
            kill_actor(CONTROLLER)

    async def _hold(self) -> None:
        await asyncio.to_thread(self._agents.start)
        cluster = self._placed()
        launcher = await AgentLauncher.connected(cluster.hosts, cluster.credentials)
        try:
            cluster = settled_on(cluster, launcher.offered, share=self._plan.share_gpus)
        except StartError:
            await launcher.close()
            raise
        names = {
            *(router.name for router in cluster.routers()),
            *(worker.name for worker in cluster.workers("")),
        }
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
