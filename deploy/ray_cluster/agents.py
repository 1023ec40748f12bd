"""The agents of a cluster's nodes, and the GPUs that they hold, as actors of an existing Ray.

All calls to Ray here block. While Ray's control store is down they block for long or fail, so make
them on a thread of their own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
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
from twolane.deploy.spec.cluster_spec import HostSetSpec
from twolane.deploy.spec.spec_json import to_json

log = logging.getLogger(__name__)

READY_S = 60.0
_HEAD = "node:__internal_head__"  # a resource of Ray's head
_KEEP_S = 10.0  # for one that takes longer, `keep` is called again: others must not wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A host of the cluster: the arguments of its agent, its numbers of GPUs and seats, and what
    switches it off (see `HostSpec`)."""

    agent: AgentPlan
    n_gpus: int = 0
    seats: int = 0
    fence_command: str = ""


class Agents:
    """The agents of a cluster's hosts. A host whose Ray node has restarted has a new node; its
    agent is started there, and finds the processes of its predecessor. Nodes of `sets` have
    agents of their own (see `MadeNodes`), and one more would keep them from being idle."""

    def __init__(self, hosts: tuple[HostPlan, ...], sets: Sequence[HostSetSpec] = ()) -> None:
        self._hosts = hosts
        self._sets = sets
        self._on: set[str] = set()  # ids of nodes that have an agent
        self._making = threading.Lock()
        self._is_over = False  # no actor is created any more
        self._ending = threading.Lock()
        self._silent: list[str] | None = None

    def start(self, within_s: float = READY_S) -> None:
        """Start the missing agents. Raises `StartError` if none can be started in time."""
        why = self._start_all(within_s)
        if not self._on:
            raise StartError(why or "no node of the cluster is alive")

    def keep(self) -> None:
        """Start an agent on each new node. One that does not start in time is found by the next
        call."""
        self._start_all(_KEEP_S)

    def _start_all(self, within_s: float) -> str:
        """Start all at once, so that a silent host delays no other. Returns why one has failed;
        empty if none has."""
        wanted = [each for each in self._nodes() if each[1].node_id not in self._on]
        with ThreadPoolExecutor(max(len(wanted), 1)) as pool:
            whys = [*pool.map(lambda its: self._try_start(its[0], its[1], within_s), wanted)]
        return next(filter(None, whys), "")

    def _try_start(self, host: HostPlan, node: Node, within_s: float) -> str:
        """Start one agent. Returns why it has failed, which is also logged; empty if it has not."""
        try:
            self._start(host, node, within_s)
        except StartError as error:
            log.error("%s", error)
            return str(error)
        return ""

    def end(self, *, within_s: float = 30.0) -> list[str]:
        """Have every host kill all of its processes, and end the agents; none is started from now
        on. A host may run processes and have no agent, for example after its raylet was killed:
        then one is started for this. Returns the hosts that have not confirmed that nothing is
        left. May be called again."""
        with self._ending:
            if self._silent is None:
                self._silent = self._end(within_s)
            return self._silent

    def _end(self, within_s: float) -> list[str]:
        with self._making:
            self._is_over = True
        calls = {
            agent_of(host.agent, node).end_all.remote(): host.agent.host_name
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
        """The live nodes with their hosts. A host may have two: a restarted one, and one that Ray
        does not report as dead yet."""
        alive = nodes()
        ours = [node for node in alive if not any(fits(its, node) for its in self._sets)]
        found = []
        for host in self._hosts:
            at = [node for node in ours if node.ip == host.agent.ip]
            at = at or [node for node in alive if node.ip == host.agent.ip]  # its own fits a set
            found += [(host, node) for node in at]
        return found

    def _start(self, host: HostPlan, node: Node, within_s: float) -> None:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        name, plan = host.agent.host_name, host.agent
        try:
            if host.n_gpus:
                seat = self._made(partial(_seat, host, node))
                gpus = ray.get(seat.gpus.remote(), timeout=within_s)
                plan = replace(plan, gpus=tuple(gpus))
            actor = self._made(partial(agent_of, plan, node))
            endpoint: str = ray.get(actor.endpoint.remote(), timeout=within_s)
        except GetTimeoutError as error:
            wanted = f" with {host.n_gpus} free GPUs" if host.n_gpus else ""
            raise StartError(f"Ray started no agent on {name}{wanted} in {within_s:g} s") from error
        except RayError as error:
            raise StartError(f"the agent of {name}: {error}") from error
        self._on.add(node.node_id)
        log.info("the agent of %s serves at %s", name, endpoint)

    def _made(self, make: Callable[[], Any]) -> Any:
        """Create an actor, unless `end` was called: a later `end` finds the actor, after an earlier
        one this raises `StartError`."""
        with self._making:
            if self._is_over:  # guard: the last agent
                raise StartError("the cluster is ending")
            return make()


def end_agents(*, within_s: float = 30.0) -> None:
    """As `Agents.end`, for the agents that Ray knows, if the caller does not know the hosts."""
    agents = {name: our_actor(name) for name in our_actors(AGENT)}
    calls = {agent.end_all.remote(): name for name, agent in agents.items() if agent is not None}
    for name, error in outcomes(calls, within_s):
        if error is not None:
            log.error("%s: %s", name, error)
    _kill_actors()


def _kill_actors() -> None:
    for name in (*our_actors(AGENT), *our_actors(SEAT)):
        kill_actor(name)


def agent_of(plan: AgentPlan, node: Node) -> Any:
    """The agent's actor, which is created if it does not exist."""
    name = AGENT + suffix(plan.host_name, node)
    kind = actor_on(node, AgentActor, name=name, max_restarts=-1, max_concurrency=4)
    return kind.remote(to_json(plan))


def _seat(host: HostPlan, node: Node) -> Any:
    """The actor that holds the GPUs, which is created if it does not exist."""
    name = SEAT + suffix(host.agent.host_name, node)
    return actor_on(node, SeatActor, name=name, num_gpus=host.n_gpus, max_restarts=0).remote()


def bundle(its: HostSetSpec) -> dict[str, float]:
    """The resources of one node of the set."""
    gpus = {"GPU": float(its.gpus)} if its.gpus else {}
    return gpus | {each.name: each.amount for each in its.resources}


def fits(its: HostSetSpec, node: Node) -> bool:
    """Whether the node can be one of the set."""
    has = node.resources
    return _HEAD not in has and all(has.get(name, 0) >= n for name, n in bundle(its).items())


def suffix(host_name: str, node: Node) -> str:
    """What the names of a host's actors on that node end in."""
    return f"{host_name}-{node.node_id[-8:]}"
