"""A controller that does not answer, without Ray's processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RaySystemError

from twolane.deploy.errors import StartError
from twolane.deploy.ray_cluster import lifecycle
from twolane.deploy.ray_cluster.connection import Node
from twolane.deploy.spec.settings import RaySettings

NODE = Node(node_id="a", host_name="a", ip="10.0.0.1", gpus=0)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A Ray whose controllers answer no call in time; what a start has ended there."""
    ended: list[str] = []
    events = SimpleNamespace(remote=lambda n: "a call")
    controller = SimpleNamespace(events=events)
    made = SimpleNamespace(remote=lambda plan: controller)

    def get(call: Any, *, timeout: float) -> None:
        raise GetTimeoutError(f"not in {timeout} s")

    def end() -> list[str]:
        ended.append("the cluster")
        return []

    monkeypatch.setattr("ray.get", get)
    for name, does in {
        "connect": lambda address, cluster: None,
        "our_actor": lambda name: None,
        "nodes": lambda: [NODE],
        "planned": lambda *args, **how: {},
        "to_json": str,
        "actor_on": lambda *args, **how: made,
        "_end": end,
    }.items():
        monkeypatch.setattr(lifecycle, name, does)
    return ended


def start() -> None:
    cluster: Any = None
    lifecycle.start(RaySettings(cluster="c"), cluster, print, share=False)


def test_a_controller_that_never_answers_fails_the_start_and_nothing_is_left(
    ended: list[str],
) -> None:
    with pytest.raises(StartError, match="the controller has not answered for 180 s"):
        start()
    assert ended == ["the cluster"]


def test_a_ray_that_has_no_store_to_end_it_with_is_told_too(
    ended: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def end() -> list[str]:
        raise RaySystemError("no store")

    monkeypatch.setattr(lifecycle, "_end", end)
    with pytest.raises(StartError, match="the controller has not answered"):
        start()
    assert "the new cluster is ended: Ray does not answer" in caplog.text


def test_the_cluster_of_others_is_not_ended(
    ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(events=SimpleNamespace(remote=lambda n: "a call"))
    monkeypatch.setattr(lifecycle, "our_actor", lambda name: there)
    with pytest.raises(StartError, match="the controller has not answered"):
        start()
    assert not ended
