"""A controller that Ray makes again while a host is silent that others wait for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.controller.desired import Seat
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.ray_cluster import controller_actor
from twolane.deploy.ray_cluster.agents import Agents
from twolane.deploy.ray_cluster.connection import Node
from twolane.deploy.ray_cluster.controller_actor import ControllerActor
from twolane.deploy.ray_cluster.lifecycle import planned
from twolane.deploy.spec.settings import RaySettings
from twolane.deploy.spec.spec_json import to_json

NODES = [Node("n0", "a", "10.0.0.1", 1), Node("n1", "b", "10.0.0.2", 1)]
Offered = dict[str, tuple[str, ...]]  # GPUs by host
CLUSTER = cluster_with(model_with(device="cuda"), prefill=1, decode=1)
CONNECTED = DeposedError("it has connected")


class FakeLauncher:
    """Agents of `offered` answer, and run these processes. It goes no further than to connect, and
    fails with `error`."""

    desired = None

    def __init__(self, offered: Offered, running: set[str], error: Exception = CONNECTED) -> None:
        self.offered = offered
        self._running = running
        self._error = error

    def running(self) -> set[str]:
        return self._running

    def found(self) -> list[Seat]:
        return []

    async def close(self) -> None:
        pass

    async def end_others(self, names: object, grace_s: float) -> None:
        raise self._error


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
    controller = ControllerActor(
        to_json(planned(RaySettings(cluster="x"), CLUSTER, NODES, share=False))
    )
    controller._thread.join(60)
    after, (event,) = controller.events(0)
    assert not left
    assert after == 1
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


def test_a_cluster_that_is_up_waits_until_what_it_does_not_want_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = (
        FakeLauncher(BOTH, {"router-0"}, NotProvenError("decode-7 may still run")),
        FakeLauncher(BOTH, {"router-0"}),
    )
    assert last_words(monkeypatch, *tries) == "it has connected"


def test_a_controller_keeps_few_events_and_the_last_that_says_how_the_cluster_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_actor, "was_made_again", lambda: False)
    monkeypatch.setattr(ControllerActor, "_run", lambda self: None)
    plan = planned(RaySettings(cluster="x"), CLUSTER, NODES, share=False)
    controller = ControllerActor(to_json(plan))
    kinds = [Kind.FAILED, Kind.READY, *[Kind.DIED] * 10_000]
    for i, kind in enumerate(kinds):
        controller._tell(Event(kind=kind, name=str(i)))
    after, told = controller.events(0)
    numbers = [int(json.loads(event)["name"]) for event in told]
    assert after == len(kinds)
    assert numbers[0] == 1
    assert numbers[1:] == [*range(len(kinds) - len(told) + 1, len(kinds))]
    assert 200 <= len(told) <= 2_000
    assert controller.events(after - 1) == (after, told[-1:])
    assert controller.events(1) == (after, told)
    controller._is_over = True
    assert controller.events(after) == (after, [])
    controller._loop.close()
