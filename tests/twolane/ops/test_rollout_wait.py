"""What `twolane rollout` refuses, and how it exits with --wait."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from twolane.cli.app import app
from twolane.v1 import cluster_pb2


def run(door: Door, line: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", door.admin])


def ends(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A cluster whose rollout is in that state."""
    its = cluster_pb2.RolloutStatus(state=state, to_dir="/models/b")
    monkeypatch.setattr("twolane.cli.rollout._latest", lambda _: its)


@pytest.mark.parametrize(
    ("line", "state", "code"),
    [
        ("start /models/b", "done", 0),
        ("start /models/b --canary 5%", "canary", 0),
        ("start /models/b", "undone", 1),
        ("start /models/b", "paused", 1),
        ("resume", "done", 0),
        ("resume", "undone", 1),
        ("pause", "paused", 0),
        ("pause", "done", 1),
        ("undo", "undone", 0),
        ("undo", "done", 1),
    ],
)
def test_wait_exits_with_1_unless_it_ends_as_asked_for(
    line: str, state: str, code: int, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, state)
    done = run(door, f"rollout {line} --yes --wait")
    assert done.exit_code == code, done.output
    assert (f"Error: the rollout is {state}, not" in done.output) == bool(code)


def test_json_of_a_wait_is_the_status_at_the_end_alone(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state, code in (("done", 0), ("undone", 1)):
        ends(monkeypatch, state)
        done = run(door, "rollout start /models/b --yes --wait --json")
        assert done.exit_code == code
        told = json.loads(done.stdout)
        assert (told["schema"], told["state"]) == ("twolane.v1.RolloutStatus", state)


@pytest.mark.parametrize("share", ["0%", "0", "100%", "-1%", "many"])
def test_canary_without_a_share_is_refused(share: str, door: Door) -> None:
    done = run(door, f"rollout start /models/b --canary {share} --yes")
    assert done.exit_code == 2
    assert f"{share} is no share: give one like 5%, or no --canary" in done.output


def test_relative_path_is_refused_as_the_hosts_have_another_folder(door: Door) -> None:
    done = run(door, "rollout start models/b --yes")
    assert done.exit_code == 2
    assert "models/b is not an absolute path: it is one of the hosts'" in done.output
