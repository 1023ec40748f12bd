"""Which of a Ray's nodes a cluster takes, and what of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster.connection import Node, names_of
from twolane.deploy.ray_cluster.controller_actor import beside_ray
from twolane.deploy.ray_cluster.lifecycle import AGENT_PORT, planned
from twolane.deploy.spec.cluster_spec import HostSetSpec, HostSpec
from twolane.deploy.spec.settings import RaySettings
from twolane.deploy.spec.spec_json import from_json, to_json

X = RaySettings(address="auto", cluster="x", fence_command="power off $TWOLANE_HOST")
FAKE = model_with(engine="fake")


def nodes(*gpus: int) -> list[Node]:
    """Hosts a, b, c, … with so many GPUs each."""
    return [Node(f"n{i}", "abc"[i], f"10.0.0.{i + 1}", n) for i, n in enumerate(gpus)]


def test_workers_on_the_cpu_are_spread_over_the_nodes() -> None:
    plan = planned(X, cluster_with(FAKE, prefill=1, decode=1), nodes(0, 0), share=False)
    assert [(h.agent.host_name, h.seats, h.n_gpus) for h in plan.hosts] == [
        ("a", 1, 0),
        ("b", 1, 0),
    ]
    assert {h.agent.port for h in plan.hosts} == {AGENT_PORT}
    assert {h.fence_command for h in plan.hosts} == {"power off $TWOLANE_HOST"}
    assert from_json(type(plan), to_json(plan)).hosts == plan.hosts


def test_a_node_that_gets_no_worker_gets_no_agent_but_the_routers_does() -> None:
    cluster = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
    plan = planned(X, cluster, nodes(0, 0, 2), share=False)
    assert [(h.agent.host_name, h.seats, h.n_gpus) for h in plan.hosts] == [
        ("a", 0, 0),
        ("c", 2, 2),
    ]


def test_gpus_of_one_name_on_two_hosts_are_two() -> None:
    cluster = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
    plan = planned(X, cluster, nodes(1, 1), share=False)
    assert [(h.agent.host_name, h.seats, h.n_gpus) for h in plan.hosts] == [
        ("a", 1, 1),
        ("b", 1, 1),
    ]


def test_the_first_port_of_the_range_is_the_agents() -> None:
    cluster = replace(cluster_with(FAKE, colocated=1), ports="7300-7399")
    assert planned(X, cluster, nodes(0), share=False).hosts[0].agent.port == 7300


def test_gpus_that_are_too_few_are_refused_before_anything_starts() -> None:
    cluster = cluster_with(model_with(device="cuda"), prefill=2, decode=2)
    with pytest.raises(StartError, match="4 workers need 4 GPUs"):
        planned(X, cluster, nodes(1, 2), share=False)


def test_a_node_at_the_loopback_is_refused_where_there_are_others() -> None:
    here, there = nodes(0, 0)
    with pytest.raises(StartError, match="--node-ip-address"):
        planned(
            X,
            cluster_with(FAKE, colocated=1),
            [replace(here, ip="127.0.0.1"), there],
            share=False,
        )


def test_hosts_of_one_name_are_told_apart_by_their_address() -> None:
    a, b, c = nodes(0, 0, 0)
    assert names_of([a, replace(b, host_name="a"), c]) == ["a-10.0.0.1", "a-10.0.0.2", "c"]


def test_routers_beside_a_ray_are_on_hosts_of_their_own_and_not_on_its_first_node() -> None:
    router = HostSpec(
        name="r-0", agent="r:7210", bind_host="0.0.0.0", advertise_host="r", gpus=(), seats=0,
        routers=1,
    )  # fmt: skip
    its_set = HostSetSpec(name="gpu", pools=("prefill", "decode"), most=2, seats=1)
    cluster = replace(
        cluster_with(FAKE, prefill=1, decode=1, host_sets=(its_set,)),
        hosts=(router, *its_set.hosts()),
    )
    plan = planned(X, cluster, nodes(0, 0), share=False)
    assert [(h.agent.host_name, h.seats) for h in plan.hosts] == [("x-head", 0)]
    assert beside_ray(from_json(type(plan), to_json(plan)).cluster) == (router,)
    assert [(its.name, its.host_name) for its in plan.cluster.routers()] == [("router-0", "r-0")]
