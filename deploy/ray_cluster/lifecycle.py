"""`start` a cluster on somebody's Ray, or find it there, and `end` it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.ray_cluster.agent_actor import AgentPlan
from twolane.deploy.ray_cluster.agents import Agents, HostPlan, end_agents
from twolane.deploy.ray_cluster.connection import (
    CONTROLLER,
    Node,
    actor_on,
    connect,
    kill_actor,
    names_of,
    nodes,
    our_actor,
    our_actors,
)
from twolane.deploy.ray_cluster.controller_actor import ClusterPlan, ControllerActor
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.rpc.listen import is_loopback, port_range

AGENT_PORT = 7210  # of an agent, where the cluster has no range of ports
_ANSWER_S = 30.0  # for a controller that is being made again
_PAUSE_S = 0.5
_STOP_MARGIN_S = 60.0  # beyond the graces of processes

log = logging.getLogger(__name__)


def start(
    address: str, name: str, cluster: ClusterSpec, tell: Callable[[Event], None], *, share: bool
) -> None:
    """Start the cluster of that name, or find it; returns when it answers, and it goes on. Raises
    `StartError`; then nothing of it is left, unless it was there before."""
    connect(address, name)
    controller = our_actor(CONTROLLER)
    is_new = controller is None
    if is_new:
        found = nodes()
        plan = planned(name, cluster, found, share=share)
        controller = actor_on(
            found[0], ControllerActor, name=CONTROLLER, max_restarts=-1, max_concurrency=8
        ).remote(to_json(plan))
    for event in _events(controller):
        if event.kind in (Kind.FAILED, Kind.STOPPED):
            if is_new:
                _end()
            raise StartError(event.text or "the cluster has been stopped")
        tell(event)
        if event.kind is Kind.READY:
            return


def end(address: str, name: str) -> list[str]:
    """End the cluster of that name and leave nothing of it. Returns the hosts that Ray could not
    reach, where processes may run on. Raises `StartError` where there is no such cluster."""
    connect(address, name)
    if not our_actors(""):
        raise StartError(f"there is no cluster {name} on the Ray at {address}")
    return _end()


def _end() -> list[str]:
    """The controller does it. Where it cannot, as its node is lost, this process does."""
    import ray
    from ray.exceptions import RayError

    controller = our_actor(CONTROLLER)
    plan = None if controller is None else _plan_of(controller)
    if plan is None:
        kill_actor(CONTROLLER)
        end_agents()
        return ["hosts that the controller alone knew"]
    graces_s = 2 * plan.cluster.timing.stop_grace_s  # the router's, then the workers'
    try:
        silent: list[str] = ray.get(controller.stop.remote(), timeout=graces_s + _STOP_MARGIN_S)
    except (RayError, TimeoutError) as error:
        log.error("the controller: %s", error)
        kill_actor(CONTROLLER)
        return Agents(plan.hosts).end()
    kill_actor(CONTROLLER)
    return silent


def _plan_of(controller: Any) -> ClusterPlan | None:
    """None if it does not answer; it may be about to be made again."""
    import ray
    from ray.exceptions import RayError

    end = time.monotonic() + _ANSWER_S
    while (left_s := end - time.monotonic()) > 0:
        try:
            return from_json(ClusterPlan, ray.get(controller.plan.remote(), timeout=left_s))
        except (RayError, TimeoutError) as error:
            log.warning("the controller: %s", error)
        time.sleep(_PAUSE_S)
    return None


def planned(name: str, cluster: ClusterSpec, found: list[Node], *, share: bool) -> ClusterPlan:
    """Which hosts it takes, and what of each. The router is on the first of them, where this
    process is. Raises `StartError` if they have too little."""
    if len(found) > 1 and any(is_loopback(node.ip) for node in found):
        raise StartError("a node of Ray is at a loopback address: ray start --node-ip-address")
    hosts = tuple(
        HostSpec(name=host_name, agent=f"{node.ip}:1", bind_host=node.ip, advertise_host="")
        for host_name, node in zip(names_of(found), found, strict=True)
    )
    offered = {
        host.name: tuple(map(str, range(node.gpus)))
        for host, node in zip(hosts, found, strict=True)
    }
    seated = settled_on(replace(cluster, hosts=hosts), offered, share=share)
    plans = []
    for host, node in zip(hosts, found, strict=True):
        devices: set[str] = set()
        seats = 0
        for pool in seated.pools:
            for i, its_host in enumerate(pool.host_names):
                if its_host == host.name:
                    seats += 1
                    devices |= {*(pool.devices[i] if pool.devices else ())}
        if seats or node is found[0]:
            agent = AgentPlan(
                cluster=name,
                host_name=host.name,
                ip=node.ip,
                port=port_range(cluster.ports)[0] if cluster.ports else AGENT_PORT,
                secret=cluster.secret,
                tls=cluster.tls_of(host.name),
                insecure=cluster.insecure,
            )
            plans.append(HostPlan(agent=agent, n_gpus=len(devices), seats=seats))
    return ClusterPlan(cluster=cluster, hosts=tuple(plans), share_gpus=share)


def _events(controller: object) -> Iterator[Event]:
    """As they come, from the first. Raises `StartError` when the controller dies for good."""
    import ray
    from ray.exceptions import RayError

    n = 0
    while True:
        try:
            news = ray.get(controller.events.remote(n))  # type: ignore[attr-defined]
        except RayError as error:
            raise StartError(f"the controller: {error}") from error
        n += len(news)
        for text in news:
            value = json.loads(text)
            yield Event(**{**value, "kind": Kind(value["kind"])})
