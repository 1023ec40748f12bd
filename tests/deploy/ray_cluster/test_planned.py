"""Which of a Ray's nodes a cluster takes, and what of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster.connection import Node, names_of
from twolane.deploy.ray_cluster.lifecycle import AGENT_PORT, planned
from twolane.deploy.spec.spec_json import from_json, to_json

FAKE = model_with(engine="fake")


def nodes(*gpus: int) -> list[Node]:
    """Hosts a, b, c, … with so many GPUs each."""
    return [Node(f"n{i}", "abc"[i], f"10.0.0.{i + 1}", n) for i, n in enumerate(gpus)]


def test_workers_on_the_cpu_are_spread_over_the_nodes() -> None:
    plan = planned("x", cluster_with(FAKE, prefill=1, decode=1), nodes(0, 0), share=False)
    assert [(h.agent.host_name, h.seats, h.n_gpus) for h in plan.hosts] == [
        ("a", 1, 0),
        ("b", 1, 0),
    ]
    assert {h.agent.port for h in plan.hosts} == {AGENT_PORT}
    assert from_json(type(plan), to_json(plan)).hosts == plan.hosts


def test_a_node_that_gets_no_worker_gets_no_agent_but_the_routers_does() -> None:
    cluster = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
    plan = planned("x", cluster, nodes(0, 0, 2), share=False)
    assert [(h.agent.host_name, h.seats, h.n_gpus) for h in plan.hosts] == [
        ("a", 0, 0),
        ("c", 2, 2),
    ]


def test_gpus_of_one_name_on_two_hosts_are_two() -> None:
    cluster = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
    plan = planned("x", cluster, nodes(1, 1), share=False)
    assert [(h.agent.host_name, h.seats, h.n_gpus) for h in plan.hosts] == [
        ("a", 1, 1),
        ("b", 1, 1),
    ]


def test_the_first_port_of_the_range_is_the_agents() -> None:
    cluster = replace(cluster_with(FAKE, colocated=1), ports="7300-7399")
    assert planned("x", cluster, nodes(0), share=False).hosts[0].agent.port == 7300


def test_gpus_that_are_too_few_are_refused_before_anything_starts() -> None:
    cluster = cluster_with(model_with(device="cuda"), prefill=2, decode=2)
    with pytest.raises(StartError, match="4 workers need 4 GPUs"):
        planned("x", cluster, nodes(1, 2), share=False)


def test_a_node_at_the_loopback_is_refused_where_there_are_others() -> None:
    here, there = nodes(0, 0)
    with pytest.raises(StartError, match="--node-ip-address"):
        planned(
            "x",
            cluster_with(FAKE, colocated=1),
            [replace(here, ip="127.0.0.1"), there],
            share=False,
        )


def test_hosts_of_one_name_are_told_apart_by_their_address() -> None:
    a, b, c = nodes(0, 0, 0)
    assert names_of([a, replace(b, host_name="a"), c]) == ["a-10.0.0.1", "a-10.0.0.2", "c"]
