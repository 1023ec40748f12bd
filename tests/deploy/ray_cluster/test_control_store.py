"""Ray's errors while its control store is down, without Ray's processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray.exceptions import RaySystemError

from twolane.deploy.ray_cluster import controller_actor
from twolane.deploy.ray_cluster.connection import bearing_with_ray


@pytest.mark.parametrize(
    "error", [RuntimeError("no store"), RaySystemError("no store"), ConnectionError("no store")]
)
def test_what_ray_raises_is_logged_and_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def look() -> None:
        raise error

    with bearing_with_ray("nodes"):
        look()
    (record,) = caplog.records
    assert "nodes: Ray does not answer" in record.getMessage()
    assert "no store" in record.getMessage()


@pytest.mark.parametrize("error", [NotImplementedError(), RecursionError(), ValueError()])
def test_other_errors_are_not_taken_for_rays(error: Exception) -> None:
    with pytest.raises(type(error)), bearing_with_ray("nodes"):
        raise error


def test_a_controller_that_cannot_keep_its_agents_ends_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controller_actor, "_LOOK_S", 0.0)
    looks: list[Callable[[], None]] = []

    def exit_with(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", exit_with)

    def look() -> None:
        looks.append(look)
        raise RuntimeError("no store") if len(looks) < 3 else NotImplementedError("our fault")

    with pytest.raises(SystemExit):
        controller_actor._again_and_again(look)()
    assert len(looks) == 3
    text = [record.getMessage() for record in caplog.records]
    assert text[-1] == "agents are not kept any more"
