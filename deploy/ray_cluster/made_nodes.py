"""Nodes of a Ray that come and go with the workers, by Ray's own autoscaler.

    a host is wanted ──▶ request_resources ──▶ Ray's autoscaler adds a node ──▶ our agent there
    no longer        ──▶ the agent and what holds the node's resources end ──▶ the node is idle, and
                         Ray's autoscaler removes it

Of all calls of `request_resources` on a Ray the last one counts. The controller is the one owner of
it: it asks for the nodes of all sets at once, as long as one of them is missing. Then it asks for
none: a node that we hold is in use and stays, and one that we have released goes. (While nodes are
asked for, Ray may count a released one instead of one that we hold, and keep it for that.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from twolane.deploy.agent.host_link import HostState
from twolane.deploy.agent.made_hosts import MadeHosts
from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster.agent_actor import AgentPlan, SeatActor
from twolane.deploy.ray_cluster.agents import HostPlan, agent_of, bundle, fits, suffix
from twolane.deploy.ray_cluster.connection import (
    AGENT,
    SEAT,
    Node,
    actor_on,
    bearing_with_ray,
    kill_actor,
    nodes,
    our_actors,
    outcomes,
)
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSetSpec
from twolane.rpc.listen import port_range

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_ASK_AGAIN_S = 10.0
_START_S = 30.0
_END_S = 30.0


@dataclass(frozen=True, slots=True)
class _Slot:
    """A host of a set, and the agent's port where several nodes share an address, as on one
    machine."""

    its: HostSetSpec
    own_port: int


class MadeNodes:
    """All methods block, and are called by one thread at a time. `plan`: the agent's on the
    cluster's first node, whose settings the others have too. `ports`: the cluster's."""

    def __init__(self, sets: Sequence[HostSetSpec], plan: AgentPlan, ports: str = "") -> None:
        hosts = [(host.name, its) for its in sets for host in its.hosts()]
        own_ports = range(plan.port + len(hosts), plan.port, -1)
        if ports:  # others take the first ones of the range
            own_ports = port_range(ports)[::-1]
        if len(own_ports) < len(hosts):
            raise StartError(f"--ports {ports}: {len(hosts)} hosts need one each")
        self._slots = {
            name: _Slot(its, port) for (name, its), port in zip(hosts, own_ports, strict=False)
        }
        self._plan = plan
        self._on: dict[str, Node] | None = None  # hosts and their nodes; None: not looked so far
        self._agents: dict[str, str] = {}  # endpoints of their agents
        self._asked: tuple[list[dict[str, float]] | None, float] = (None, 0.0)

    def look(self, wanted: Collection[str], empty: Collection[str]) -> dict[str, str]:
        """Ask for the nodes of the hosts in `wanted`, release the others, and start agents on
        those that came. On hosts in `empty` nothing runs. Returns the agents that serve, by host.
        Raises Ray's errors while its control store is down."""
        if not self._slots:
            return {}
        alive = nodes()
        on = self._on = self._found(alive) if self._on is None else self._on
        self._release([name for name in on if name not in wanted], alive)
        ids = {node.node_id for node in alive}
        for name, node in list(on.items()):
            if node.node_id not in ids and name in empty:  # guard: what runs on a lost node
                self._forget(name)
        self._seat(wanted, alive)
        self._ask(wanted)
        missing = [name for name, node in on.items() if name not in self._agents]
        with ThreadPoolExecutor(max(len(missing), 1)) as pool:
            list(pool.map(self._try_start, missing))
        return dict(self._agents)

    def end(self) -> list[str]:
        """End all hosts, and ask for no node any more. Returns those whose processes may still
        run."""
        if not self._slots:
            return []
        alive = nodes()
        self._on = self._found(alive) if self._on is None else self._on
        self._release(list(self._on), alive)
        self._agents.clear()
        self._ask(())
        return sorted(self._on)

    def _found(self, alive: Sequence[Node]) -> dict[str, Node]:
        """Those that an earlier controller has started."""
        names = {*our_actors(AGENT)}
        return {
            name: node
            for name in self._slots
            for node in alive
            if AGENT + suffix(name, node) in names
        }

    def _ask(self, wanted: Collection[str]) -> None:
        from ray.autoscaler.sdk import request_resources

        is_missing = not {*wanted} <= self._agents.keys()
        names = sorted(wanted) if is_missing else []
        bundles = [bundle(self._slots[name].its) for name in names]
        before, at = self._asked
        is_old = bool(bundles) and time.monotonic() > at + _ASK_AGAIN_S
        if bundles != before or is_old:
            request_resources(bundles=bundles)
            self._asked = bundles, time.monotonic()

    def _seat(self, wanted: Collection[str], alive: Sequence[Node]) -> None:
        """Give wanted hosts the nodes that are free."""
        assert self._on is not None
        taken = {node.node_id for node in self._on.values()}
        for name, slot in self._slots.items():
            if name not in wanted or name in self._on:
                continue
            for node in alive:
                if node.node_id not in taken and fits(slot.its, node):
                    self._on[name] = node
                    taken.add(node.node_id)
                    break

    def _try_start(self, name: str) -> None:
        """Start the node's agent. A failure is logged, and tried again with the next look."""
        import ray
        from ray.exceptions import RayError

        assert self._on is not None
        node, its = self._on[name], self._slots[name].its
        try:
            seat = _seat_of(name, its, node)
            ray.get(seat.gpus.remote(), timeout=_START_S)
            agent = agent_of(self._plan_of(name), node)
            self._agents[name] = ray.get(agent.endpoint.remote(), timeout=_START_S)
        except (RayError, TimeoutError) as error:
            log.error("the agent of %s: %s", name, error)
            return
        log.info("the agent of %s serves at %s", name, self._agents[name])

    def _plan_of(self, name: str) -> AgentPlan:
        assert self._on is not None
        node, slot = self._on[name], self._slots[name]
        is_shared = node.ip == self._plan.ip or any(
            other.ip == node.ip for its, other in self._on.items() if its != name
        )
        return replace(
            self._plan,
            host_name=name,
            ip=node.ip,
            port=slot.own_port if is_shared else self._plan.port,
            gpus=tuple(map(str, range(slot.its.gpus))),
        )

    def _release(self, names: Sequence[str], alive: Sequence[Node]) -> None:
        """End the agents of these hosts, where nothing of ours runs that is wanted. One that cannot
        be reached stays taken."""
        assert self._on is not None
        ids = {node.node_id for node in alive}
        calls = {
            agent_of(self._plan_of(name), self._on[name]).end_all.remote(): name
            for name in names
            if self._on[name].node_id in ids
        }
        for name in names:
            if self._on[name].node_id not in ids:
                self._forget(name)
        for name, error in outcomes(calls, _END_S):
            if error is not None:
                log.error("the agent of %s: %s", name, error)
                continue
            for kind in (AGENT, SEAT):
                kill_actor(kind + suffix(name, self._on[name]))
            self._forget(name)

    def _forget(self, name: str) -> None:
        assert self._on is not None
        del self._on[name]
        self._agents.pop(name, None)


def made_nodes(cluster: ClusterSpec, hosts: Sequence[HostPlan]) -> MadeNodes:
    """Those of a cluster; `hosts` are the others that it has. Raises `StartError`."""
    return MadeNodes(cluster.host_sets, hosts[0].agent, cluster.ports)


async def keep_made(made: MadeHosts, its: MadeNodes) -> None:
    """Keep the nodes that are wanted, until cancelled."""
    while True:
        if (wanted := made.wanted) is not None:
            hosts = made.hosts()
            empty = {name for name in hosts if made.state(name) is HostState.AWAY}
            with bearing_with_ray("nodes of the cluster"):
                agents = await asyncio.to_thread(its.look, wanted, empty)
                _tell(made, agents)
        made.changed.clear()
        if made.wanted == wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await made.changed.wait()


def _tell(made: MadeHosts, agents: Mapping[str, str]) -> None:
    for name in made.hosts():
        if name in agents:
            made.came(name, agents[name])
        else:
            made.left(name)


def _seat_of(name: str, its: HostSetSpec, node: Node) -> Any:
    """The actor that holds all of the node's resources, so that it is in use as long as our agent
    is there, and others stay away."""
    holds = bundle(its)
    gpus = holds.pop("GPU", 0)
    holds.pop("CPU", 0)
    return actor_on(
        node,
        SeatActor,
        name=SEAT + suffix(name, node),
        num_gpus=gpus,
        resources=holds,
        max_restarts=0,
    ).remote()
