"""The agents of a cluster's nodes, and the GPUs that they hold, as actors of somebody's Ray.

Every call of Ray in here blocks, and blocks for long or fails while Ray's control store is away:
call it from a thread that has nothing else to do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster.agent_actor import AgentActor, AgentPlan, SeatActor
from twolane.deploy.ray_cluster.connection import AGENT, SEAT, Node, actor_on, nodes, our_actors
from twolane.deploy.spec.spec_json import to_json

log = logging.getLogger(__name__)

_READY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A host of the cluster: how its agent is made, and how many GPUs and seats it gives."""

    agent: AgentPlan
    n_gpus: int = 0
    seats: int = 0


class Agents:
    """By host name. A host whose node has ended and come back has another node; its agent is
    started there, and finds what its predecessor has left."""

    def __init__(self, hosts: tuple[HostPlan, ...]) -> None:
        self._hosts = hosts
        self._on: dict[str, str] = {}  # host name: node id

    def start(self) -> None:
        """Start those that are not there. Raises `StartError` where none can be started."""
        why = "no node of the cluster is alive"
        for host, node in self._nodes():
            try:
                self._start(host, node)
            except StartError as error:
                why = str(error)
                log.error("%s", why)
        if not self._on:
            raise StartError(why)

    def keep(self) -> None:
        """Start an agent on each node that has come since."""
        for host, node in self._nodes():
            if self._on.get(host.agent.host_name) != node.node_id:
                try:
                    self._start(host, node)
                except StartError as error:
                    log.error("%s", error)

    def _nodes(self) -> list[tuple[HostPlan, Node]]:
        alive = {node.ip: node for node in nodes()}
        return [(host, alive[host.agent.ip]) for host in self._hosts if host.agent.ip in alive]

    def _start(self, host: HostPlan, node: Node) -> None:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        name, suffix = host.agent.host_name, f"{host.agent.host_name}-{node.node_id[:8]}"
        plan = host.agent
        try:
            if host.n_gpus:
                seat = actor_on(
                    node, SeatActor, name=SEAT + suffix, num_gpus=host.n_gpus, max_restarts=0
                ).remote()
                gpus = ray.get(seat.gpus.remote(), timeout=_READY_S)
                plan = replace(plan, gpus=tuple(gpus))
            actor = actor_on(
                node, AgentActor, name=AGENT + suffix, max_restarts=-1, max_concurrency=4
            ).remote(to_json(plan))
            endpoint: str = ray.get(actor.endpoint.remote(), timeout=_READY_S)
        except GetTimeoutError as error:
            wanted = f" with {host.n_gpus} free GPUs" if host.n_gpus else ""
            raise StartError(f"Ray started no agent on {name}{wanted} in {_READY_S:g} s") from error
        except RayError as error:
            raise StartError(f"the agent of {name}: {error}") from error
        self._on[name] = node.node_id
        log.info("the agent of %s serves at %s", name, endpoint)


def end_agents(*, within_s: float = 30.0) -> list[str]:
    """Of all nodes: kill what they run, and then them. Returns the names of those that Ray could
    not reach: what they run may run on."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    silent = []
    for name in our_actors(AGENT):
        try:
            agent = ray.get_actor(name)
            ray.get(agent.end_all.remote(), timeout=within_s)
        except (RayError, GetTimeoutError, ValueError) as error:
            log.error("%s: %s", name, error)
            silent.append(name.removeprefix(AGENT))
    for name in (*our_actors(AGENT), *our_actors(SEAT)):
        kill_actor(name)
    return silent


def kill_actor(name: str) -> None:
    """And never start it again. One that is gone already is left alone."""
    import contextlib

    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(name), no_restart=True)
