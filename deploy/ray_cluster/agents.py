"""The agents of a cluster's nodes, and the GPUs that they hold, as actors of somebody's Ray.

Every call of Ray in here blocks, and blocks for long or fails while Ray's control store is away:
call it from a thread that has nothing else to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster.agent_actor import AgentActor, AgentPlan, SeatActor
from twolane.deploy.ray_cluster.connection import (
    AGENT,
    SEAT,
    Node,
    actor_on,
    kill_actor,
    nodes,
    our_actor,
    our_actors,
    outcomes,
)
from twolane.deploy.spec.spec_json import to_json

log = logging.getLogger(__name__)

READY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A host of the cluster: how its agent is made, and how many GPUs and seats it gives."""

    agent: AgentPlan
    n_gpus: int = 0
    seats: int = 0


class Agents:
    """Those of a cluster's hosts. A host whose node has ended and come back has another node; its
    agent is started there, and finds what its predecessor has left."""

    def __init__(self, hosts: tuple[HostPlan, ...]) -> None:
        self._hosts = hosts
        self._on: set[str] = set()  # ids of nodes
        self._making = threading.Lock()
        self._is_over = False  # no actor is made any more
        self._ending = threading.Lock()
        self._silent: list[str] | None = None

    def start(self, within_s: float = READY_S) -> None:
        """Start those that are not there. Raises `StartError` where none can be started in time."""
        why = self._start_all(within_s)
        if not self._on:
            raise StartError(why or "no node of the cluster is alive")

    def keep(self) -> None:
        """Start an agent on each node that has come since."""
        self._start_all(READY_S)

    def _start_all(self, within_s: float) -> str:
        """All at once: a host that is silent holds up no other. Returns why one has failed."""
        wanted = [each for each in self._nodes() if each[1].node_id not in self._on]
        with ThreadPoolExecutor(max(len(wanted), 1)) as pool:
            whys = [*pool.map(lambda its: self._try_start(its[0], its[1], within_s), wanted)]
        return next(filter(None, whys), "")

    def _try_start(self, host: HostPlan, node: Node, within_s: float) -> str:
        """Returns why it has failed, which is logged."""
        try:
            self._start(host, node, within_s)
        except StartError as error:
            log.error("%s", error)
            return str(error)
        return ""

    def end(self, *, within_s: float = 30.0) -> list[str]:
        """Have every host kill all that it runs, and end the agents; none is started from here on.
        A host that runs processes may have no agent, as after its raylet was killed: then it gets
        one for this. Returns the hosts that have not said that nothing is left of it. May be called
        again."""
        with self._ending:
            if self._silent is None:
                self._silent = self._end(within_s)
            return self._silent

    def _end(self, within_s: float) -> list[str]:
        with self._making:
            self._is_over = True
        calls = {
            _agent(host.agent, node).end_all.remote(): host.agent.host_name
            for host, node in self._nodes()
        }
        silent = {host.agent.host_name for host in self._hosts}
        for name, error in outcomes(calls, within_s):
            if error is None:
                silent.discard(name)
            else:
                log.error("the agent of %s: %s", name, error)
            if not silent:
                break
        _kill_actors()
        return sorted(silent)

    def _nodes(self) -> list[tuple[HostPlan, Node]]:
        """A host may have two: one that has come back, and one that Ray has not called dead yet."""
        alive = nodes()
        return [(host, node) for host in self._hosts for node in alive if node.ip == host.agent.ip]

    def _start(self, host: HostPlan, node: Node, within_s: float) -> None:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        name, plan = host.agent.host_name, host.agent
        try:
            if host.n_gpus:
                seat = self._made(partial(_seat, host, node))
                gpus = ray.get(seat.gpus.remote(), timeout=within_s)
                plan = replace(plan, gpus=tuple(gpus))
            actor = self._made(partial(_agent, plan, node))
            endpoint: str = ray.get(actor.endpoint.remote(), timeout=within_s)
        except GetTimeoutError as error:
            wanted = f" with {host.n_gpus} free GPUs" if host.n_gpus else ""
            raise StartError(f"Ray started no agent on {name}{wanted} in {within_s:g} s") from error
        except RayError as error:
            raise StartError(f"the agent of {name}: {error}") from error
        self._on.add(node.node_id)
        log.info("the agent of %s serves at %s", name, endpoint)

    def _made(self, make: Callable[[], Any]) -> Any:
        """An actor that `end` finds if it comes after. Raises `StartError` if it came before."""
        with self._making:
            if self._is_over:  # guard: the last agent
                raise StartError("the cluster ends")
            return make()


def end_agents(*, within_s: float = 30.0) -> None:
    """The same of those that Ray knows, for who does not know the hosts."""
    agents = {name: our_actor(name) for name in our_actors(AGENT)}
    calls = {agent.end_all.remote(): name for name, agent in agents.items() if agent is not None}
    for name, error in outcomes(calls, within_s):
        if error is not None:
            log.error("%s: %s", name, error)
    _kill_actors()


def _kill_actors() -> None:
    for name in (*our_actors(AGENT), *our_actors(SEAT)):
        kill_actor(name)


def _agent(plan: AgentPlan, node: Node) -> Any:
    """The actor, which is made if it is not there."""
    name = AGENT + _suffix(plan, node)
    kind = actor_on(node, AgentActor, name=name, max_restarts=-1, max_concurrency=4)
    return kind.remote(to_json(plan))


def _seat(host: HostPlan, node: Node) -> Any:
    """The same of the one that holds GPUs."""
    name = SEAT + _suffix(host.agent, node)
    return actor_on(node, SeatActor, name=name, num_gpus=host.n_gpus, max_restarts=0).remote()


def _suffix(plan: AgentPlan, node: Node) -> str:
    return f"{plan.host_name}-{node.node_id[:8]}"
