"""Ending a cluster on a Ray: every host of it is asked, whatever Ray has left of its agent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deploy.clusters import cluster_with, model_with
from tests.deploy.ray_cluster.fake_ray import FakeRay
from twolane.deploy.ray_cluster.agents import Agents, end_agents
from twolane.deploy.ray_cluster.connection import Node
from twolane.deploy.ray_cluster.lifecycle import planned
from twolane.deploy.spec.cluster_spec import HostSetSpec, Resource
from twolane.deploy.spec.settings import RaySettings

A, B = Node("n0", "a", "10.0.0.1", 0), Node("n1", "b", "10.0.0.2", 0)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay(monkeypatch, A, B)
    ray.runs = {A.ip: ["router-0", "prefill-0"], B.ip: ["decode-0"]}
    return ray


@pytest.fixture
def agents(ray: FakeRay) -> Agents:
    """Two, started."""
    cluster = cluster_with(model_with(engine="fake"), prefill=1, decode=1)
    agents = Agents(planned(RaySettings(cluster="x"), cluster, [A, B], share=False).hosts)
    agents.start()
    return agents


def test_every_host_ends_what_it_runs_and_then_its_agent(ray: FakeRay, agents: Agents) -> None:
    assert agents.end() == []
    assert ray.runs == {A.ip: [], B.ip: []}
    assert ray.actors == {}


def test_a_host_whose_agent_is_gone_gets_one_that_ends_what_is_left(
    ray: FakeRay, agents: Agents
) -> None:
    del ray.actors["agent-b-n1"]
    ray.nodes = [A, replace(B, node_id="n2")]
    assert agents.end() == []
    assert ray.runs[B.ip] == []
    assert ray.actors == {}


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_host_whose_node_is_dead_is_called_silent(
    ray: FakeRay, agents: Agents, is_noticed: bool
) -> None:
    ray.broken = {B.node_id}
    if is_noticed:
        ray.nodes = [A]
    assert agents.end() == ["b"]
    assert ray.runs == {A.ip: [], B.ip: ["decode-0"]}
    assert ray.actors == {}


def test_a_dead_node_that_ray_calls_alive_is_no_obstacle_to_the_living_one(
    ray: FakeRay, agents: Agents
) -> None:
    ray.broken = {B.node_id}
    ray.nodes.append(replace(B, node_id="n2"))
    assert agents.end() == []
    assert ray.runs[B.ip] == []


def test_no_agent_is_started_when_the_cluster_has_ended(ray: FakeRay, agents: Agents) -> None:
    agents.end()
    ray.nodes.append(replace(B, node_id="n2"))
    agents.keep()
    assert ray.actors == {}
    assert agents.end() == []


def test_agents_are_ended_by_who_knows_no_hosts(ray: FakeRay, agents: Agents) -> None:
    end_agents()
    assert ray.runs == {A.ip: [], B.ip: []}
    assert ray.actors == {}


def test_a_node_of_a_set_gets_no_other_agent_even_at_the_same_address(
    ray: FakeRay, agents: Agents
) -> None:
    its = HostSetSpec(name="more", pools=("decode",), most=1, resources=(Resource("tw", 1.0),))
    ray.nodes = [A, B, Node("n2", "c", A.ip, 0, {"tw": 1.0})]
    before = {*ray.actors}
    Agents(agents._hosts, (its,)).start()
    assert {*ray.actors} == before
