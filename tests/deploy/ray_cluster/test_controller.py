"""A controller that Ray makes again while a host is silent that others wait for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.controller.desired import Seat
from twolane.deploy.errors import DeposedError, StartError
from twolane.deploy.ray_cluster import controller_actor
from twolane.deploy.ray_cluster.agents import Agents
from twolane.deploy.ray_cluster.connection import Node
from twolane.deploy.ray_cluster.controller_actor import ControllerActor
from twolane.deploy.ray_cluster.lifecycle import planned
from twolane.deploy.spec.settings import RaySettings
from twolane.deploy.spec.spec_json import to_json

NODES = [Node("n0", "a", "10.0.0.1", 1), Node("n1", "b", "10.0.0.2", 1)]
Offered = dict[str, tuple[str, ...]]  # GPUs by host


class FakeLauncher:
    """Agents of `offered` answer, and run these processes. It goes no further than to connect."""

    desired = None

    def __init__(self, offered: Offered, running: set[str]) -> None:
        self.offered = offered
        self._running = running

    def running(self) -> set[str]:
        return self._running

    def found(self) -> list[Seat]:
        return []

    async def close(self) -> None:
        pass

    async def end_others(self, names: object, grace_s: float) -> None:
        raise DeposedError("it has connected")


def last_words(
    monkeypatch: pytest.MonkeyPatch, *tries: FakeLauncher | StartError, is_again: bool = True
) -> str:
    """Of a controller whose tries to connect go so."""
    left = list(tries)

    async def connected(*_: object) -> FakeLauncher:
        its = left.pop(0)
        if isinstance(its, StartError):
            raise its
        return its

    monkeypatch.setattr(controller_actor, "was_made_again", lambda: is_again)
    monkeypatch.setattr(controller_actor, "_LOOK_S", 0.0)
    monkeypatch.setattr(controller_actor, "AgentLauncher", SimpleNamespace(connected=connected))
    monkeypatch.setattr(Agents, "start", lambda self, within_s: None)
    cluster = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
    controller = ControllerActor(
        to_json(planned(RaySettings(cluster="x"), cluster, NODES, share=False))
    )
    controller._thread.join(60)
    (event,) = controller.events(0)
    assert not left
    return str(json.loads(event)["text"])


BOTH: Offered = {"a": ("0",), "b": ("0",)}
SILENT: Offered = {"a": ("0",)}


def test_a_cluster_that_is_up_waits_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = (
        StartError("nobody answers"),
        FakeLauncher(SILENT, {"router-0"}),
        FakeLauncher(BOTH, {"router-0"}),
    )
    assert last_words(monkeypatch, *tries) == "it has connected"


def test_a_cluster_that_never_came_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GPU" in last_words(monkeypatch, FakeLauncher(SILENT, set()))


def test_a_first_controller_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = FakeLauncher(SILENT, {"router-0"})
    assert "GPU" in last_words(monkeypatch, silent, is_again=False)
