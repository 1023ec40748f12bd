"""Which nodes of a Ray are asked for, used and released, without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy.ray_cluster.fake_ray import outcomes
from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster import made_nodes
from twolane.deploy.ray_cluster.agent_actor import AgentPlan
from twolane.deploy.ray_cluster.connection import Node
from twolane.deploy.ray_cluster.made_nodes import MadeNodes
from twolane.deploy.spec.cluster_spec import HostSetSpec, Resource

SETS = [
    HostSetSpec(name=pool, pools=(pool,), most=3, resources=(Resource(f"tw_{pool}", 1.0),))
    for pool in ("prefill", "decode")
]
PLAN = AgentPlan(cluster="x", host_name="a", ip="10.0.0.1", port=7300, secret="")
Bundles = list[dict[str, float]]


class World:
    """`asked`: what was requested, in order. `actors`: ours, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes = [Node("head", "a", "10.0.0.1", 0, {"node:__internal_head__": 1.0})]
        self.asked: list[Bundles] = []
        self.actors: set[str] = set()
        self.broken: set[str] = set()
        self._ips = iter(range(2, 99))
        for name in ("actor_on", "kill_actor", "agent_of"):
            monkeypatch.setattr(made_nodes, name, getattr(self, name))
        monkeypatch.setattr(made_nodes, "outcomes", outcomes)
        monkeypatch.setattr(made_nodes, "nodes", lambda: list(self.nodes))
        monkeypatch.setattr(made_nodes, "our_actors", lambda prefix: sorted(self.actors))
        monkeypatch.setattr("ray.get", lambda call, timeout: call())
        monkeypatch.setattr(
            "ray.autoscaler.sdk.request_resources", lambda bundles: self.asked.append(bundles)
        )

    def add(self, pool: str) -> Node:
        n = next(self._ips)
        node = Node(f"node{n}", f"h{n}", f"10.0.0.{n}", 0, {f"tw_{pool}": 1.0})
        self.nodes.append(node)
        return node

    def actor_on(self, node: Node, kind: type, *, name: str, **options: Any) -> Any:
        assert options["resources"], "it holds what its node has"
        self.actors.add(name)
        gpus = SimpleNamespace(remote=lambda: lambda: [])
        return SimpleNamespace(remote=lambda: SimpleNamespace(gpus=gpus))

    def agent_of(self, plan: AgentPlan, node: Node) -> Any:
        name = f"agent-{plan.host_name}-{node.node_id[-8:]}"
        self.actors.add(name)

        def end_all() -> None:
            if node.node_id in self.broken:
                raise ConnectionError

        return SimpleNamespace(
            endpoint=SimpleNamespace(remote=lambda: lambda: f"{plan.ip}:{plan.port}"),
            end_all=SimpleNamespace(remote=lambda: end_all),
        )

    def kill_actor(self, name: str) -> None:
        self.actors.discard(name)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_missing_nodes_of_all_sets_are_asked_for_at_once(world: World) -> None:
    ours = MadeNodes(SETS, PLAN)
    assert ours.look({"prefill-0", "decode-0", "decode-1"}, set()) == {}
    assert world.asked == [[{"tw_decode": 1.0}, {"tw_decode": 1.0}, {"tw_prefill": 1.0}]]


def test_nodes_that_came_are_used_and_then_none_is_asked_for(world: World) -> None:
    ours = MadeNodes(SETS, PLAN)
    wanted = {"prefill-0", "decode-0"}
    ours.look(wanted, set())
    decode, prefill = world.add("decode"), world.add("prefill")
    agents = {"prefill-0": f"{prefill.ip}:7300", "decode-0": f"{decode.ip}:7300"}
    assert ours.look(wanted, set()) == agents
    ours.look(wanted, set())
    assert world.asked[-1] == []
    assert len(world.asked) == 2


def test_a_host_that_is_not_wanted_lets_its_node_go(world: World) -> None:
    ours = MadeNodes(SETS, PLAN)
    world.add("decode")
    ours.look({"decode-0"}, set())
    assert len(world.actors) == 2
    assert ours.look(set(), set()) == {}
    assert world.actors == set()


def test_a_host_whose_agent_cannot_end_all_keeps_its_node(world: World) -> None:
    ours = MadeNodes(SETS, PLAN)
    node = world.add("decode")
    ours.look({"decode-0"}, set())
    world.broken.add(node.node_id)
    assert ours.look(set(), set()) != {}
    assert len(world.actors) == 2
    assert ours.end() == ["decode-0"]


def test_a_lost_node_gets_no_successor_while_something_may_run_there(world: World) -> None:
    ours = MadeNodes(SETS, PLAN)
    lost = world.add("decode")
    ours.look({"decode-0"}, set())
    world.nodes.remove(lost)
    successor = world.add("decode")
    assert ours.look({"decode-0"}, set()) == {"decode-0": f"{lost.ip}:7300"}
    assert ours.look({"decode-0"}, {"decode-0"}) == {"decode-0": f"{successor.ip}:7300"}


def test_the_next_controller_finds_its_nodes(world: World) -> None:
    world.add("decode")
    agents = MadeNodes(SETS, PLAN).look({"decode-0"}, set())
    world.add("decode")
    assert MadeNodes(SETS, PLAN).look({"decode-0"}, set()) == agents


def test_nodes_of_one_address_have_agents_at_ports_of_their_own(world: World) -> None:
    ours = MadeNodes(SETS, PLAN, "7300-7399")
    for pool in ("prefill", "decode"):
        world.nodes.append(Node(pool, "a", PLAN.ip, 0, {f"tw_{pool}": 1.0}))
    agents = ours.look({"prefill-0", "decode-0"}, set())
    assert len({*agents.values()}) == 2
    assert f"{PLAN.ip}:7300" not in agents.values()


def test_a_range_of_ports_that_is_too_small_is_refused() -> None:
    with pytest.raises(StartError, match="6 hosts"):
        MadeNodes(SETS, PLAN, "7300-7302")
