"""Starts a cluster on an existing Ray, or finds it there, and ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event, Kind, read_event
from twolane.deploy.ray_cluster.agent_actor import AgentPlan
from twolane.deploy.ray_cluster.agents import Agents, HostPlan, end_agents
from twolane.deploy.ray_cluster.connection import (
    CONTROLLER,
    Node,
    actor_on,
    bearing_with_ray,
    connect,
    kill_actor,
    names_of,
    nodes,
    our_actor,
    our_actors,
)
from twolane.deploy.ray_cluster.controller_actor import (
    ClusterPlan,
    ControllerActor,
    beside_ray,
)
from twolane.deploy.ray_cluster.made_nodes import made_nodes
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.settings import RaySettings
from twolane.deploy.spec.spec_json import from_json, to_json
from twolane.rpc.listen import is_loopback, port_range

AGENT_PORT = 7210  # of an agent, if the cluster has no range of ports
_ANSWER_S = 30.0  # timeout of a controller that may be restarting
_SILENT_S = 180.0  # of a controller whose events are awaited: Ray may still start its process
_PAUSE_S = 0.5
_STOP_MARGIN_S = 60.0  # beyond the grace periods of processes

log = logging.getLogger(__name__)


def start(
    ray: RaySettings, cluster: ClusterSpec, tell: Callable[[Event], None], *, share: bool
) -> None:
    """Start the cluster of that name, or find it. Returns when it serves; it then keeps running.
    Raises `StartError`; nothing is then left of a new cluster."""
    connect(ray.address, ray.cluster)
    controller = our_actor(CONTROLLER)
    is_new = controller is None
    if is_new:
        found = nodes()
        plan = planned(ray, cluster, found, share=share)
        controller = actor_on(
            found[0], ControllerActor, name=CONTROLLER, max_restarts=-1, max_concurrency=8
        ).remote(to_json(plan))
    try:
        for event in _events(controller):
            if event.kind in (Kind.FAILED, Kind.STOPPED):
                raise StartError(event.text or "the cluster has been stopped")
            tell(event)
            if event.kind is Kind.READY:
                return
    except StartError:
        if is_new:
            with bearing_with_ray("the new cluster is ended"):
                _end()
        raise


def end(address: str, name: str) -> list[str]:
    """End the cluster of that name completely. Returns the hosts that Ray could not reach, where
    processes may still run. Raises `StartError` if there is no such cluster."""
    connect(address, name)
    if not our_actors(""):
        raise StartError(f"there is no cluster {name} on the Ray at {address}")
    return _end()


def _end() -> list[str]:
    """Have the controller end the cluster. If it cannot, because its node is lost, this process
    does."""
    import ray
    from ray.exceptions import RayError

    controller = our_actor(CONTROLLER)
    plan = None if controller is None else _plan_of(controller)
    if plan is None:
        kill_actor(CONTROLLER)
        end_agents()
        return ["hosts that only the controller knew"]
    graces_s = 2 * plan.cluster.timing.stop_grace_s  # first the router's, then the workers'
    try:
        silent: list[str] = ray.get(controller.stop.remote(), timeout=graces_s + _STOP_MARGIN_S)
    except (RayError, TimeoutError) as error:
        log.error("the controller: %s", error)
        kill_actor(CONTROLLER)
        return sorted(
            [
                *(host.name for host in beside_ray(plan.cluster)),
                *made_nodes(plan.cluster, plan.hosts).end(),
                *Agents(plan.hosts, plan.cluster.host_sets).end(),
            ]
        )
    kill_actor(CONTROLLER)
    return silent


def _plan_of(controller: Any) -> ClusterPlan | None:
    """The controller's plan; None if it does not answer in time. It may be restarting."""
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


def planned(
    ray: RaySettings, cluster: ClusterSpec, found: list[Node], *, share: bool
) -> ClusterPlan:
    """Decide which hosts the cluster uses, and their GPUs and seats. Routers are on the cluster's
    own hosts beside the Ray; without any, on the first node, which is this process's. Raises
    `StartError` if the nodes have too few resources."""
    if len(found) > 1 and any(is_loopback(node.ip) for node in found):
        raise StartError("a node of Ray is at a loopback address: ray start --node-ip-address")
    beside = beside_ray(cluster)
    if cluster.host_sets:  # workers are on nodes that come and go
        found = found[:1]
    names = names_of(found)
    if cluster.host_sets and (beside or cluster.tls is not None):
        names = [f"{ray.cluster}-head"]  # known before, for its certificate
    hosts = tuple(
        HostSpec(name=host_name, agent=f"{node.ip}:1", bind_host=node.ip, advertise_host="")
        for host_name, node in zip(names, found, strict=True)
    )
    made = tuple(host for its in cluster.host_sets for host in its.hosts())
    offered = {
        host.name: tuple(map(str, range(node.gpus)))
        for host, node in zip(hosts, found, strict=True)
    }
    seated = settled_on(replace(cluster, hosts=(*beside, *hosts, *made)), offered, share=share)
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
                cluster=ray.cluster,
                host_name=host.name,
                ip=node.ip,
                port=port_range(cluster.ports)[0] if cluster.ports else AGENT_PORT,
                secret=cluster.secret,
                tls=cluster.tls_of(host.name),
                insecure=cluster.insecure,
            )
            plan = HostPlan(
                agent=agent, n_gpus=len(devices), seats=seats, fence_command=ray.fence_command
            )
            plans.append(plan)
    return ClusterPlan(cluster=cluster, hosts=tuple(plans), share_gpus=share)


def _events(controller: object) -> Iterator[Event]:
    """Yield all events from the first that is kept on, as they come. Raises `StartError` when the
    controller is dead for good, and when it says nothing for `_SILENT_S`, which Ray has to start
    it."""
    import ray
    from ray.exceptions import RayError

    n = 0
    while True:
        try:
            call = controller.events.remote(n)  # type: ignore[attr-defined]
            answer = ray.get(call, timeout=_SILENT_S)
        except TimeoutError as error:
            text = f"the controller has not answered for {_SILENT_S:g} s: Ray hangs, or has no room"
            raise StartError(text) from error
        except RayError as error:
            raise StartError(f"the controller: {error}") from error
        # A controller of version 0.1 answers with a list of the events alone.
        n, news = (n + len(answer), answer) if isinstance(answer, list) else answer
        for text in news:
            if (event := read_event(text)) is not None:
                yield event
