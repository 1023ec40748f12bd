"""What `twolane.deploy.ray_cluster.agents` asks of Ray, without Ray: nodes, and actors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from twolane.deploy.ray_cluster import agents
from twolane.deploy.ray_cluster.agent_actor import AgentPlan
from twolane.deploy.ray_cluster.connection import Node
from twolane.deploy.spec.spec_json import from_json


class FakeRay:
    """`runs`: what runs at each address. An agent that is made on a node finds it. A node in
    `broken` is dead, and Ray has not noticed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: Node) -> None:
        self.nodes = [*nodes]
        self.runs: dict[str, list[str]] = {node.ip: [] for node in nodes}
        self.actors: dict[str, Any] = {}
        self.broken: set[str] = set()
        for name in ("actor_on", "our_actors", "our_actor", "kill_actor"):
            monkeypatch.setattr(agents, name, getattr(self, name))
        monkeypatch.setattr(agents, "outcomes", outcomes)
        monkeypatch.setattr(agents, "nodes", lambda: self.nodes)
        monkeypatch.setattr("ray.get", lambda call, timeout: call())

    def actor_on(self, node: Node, kind: type, *, name: str, **options: Any) -> Any:
        def make(plan: str) -> Any:
            ip = from_json(AgentPlan, plan).ip

            def end_all() -> None:
                if node.node_id in self.broken:
                    raise ConnectionError(f"{node.node_id} is dead")
                self.runs[ip].clear()

            return self.actors.setdefault(
                name, SimpleNamespace(endpoint=_method(lambda: ip), end_all=_method(end_all))
            )

        return SimpleNamespace(remote=make)

    def our_actors(self, prefix: str) -> list[str]:
        return [name for name in self.actors if name.startswith(prefix)]

    def our_actor(self, name: str) -> Any:
        return self.actors.get(name)

    def kill_actor(self, name: str) -> None:
        del self.actors[name]


def outcomes(calls: Mapping[Any, str], within_s: float) -> Iterator[tuple[str, Exception | None]]:
    """As `twolane.deploy.ray_cluster.connection.outcomes`, of calls that are plain functions."""
    for call, name in calls.items():
        try:
            call()
        except ConnectionError as error:
            yield name, error
        else:
            yield name, None


def _method(call: Any) -> Any:
    return SimpleNamespace(remote=lambda: lambda: call())
