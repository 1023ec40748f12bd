"""What `twolane rollout` refuses, and how it exits with --wait."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.looks import looks
from twolane.cli.app import app
from twolane.errors import UnavailableError
from twolane.v1 import cluster_pb2


def run(door: Door, line: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", door.admin])


def rollout(state: str) -> cluster_pb2.RolloutStatus:
    return cluster_pb2.RolloutStatus(state=state, to_dir="/models/b")


def ends(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A cluster whose rollout is in that state."""
    monkeypatch.setattr("twolane.cli.rollout._latest", lambda _: rollout(state))


def answers(
    monkeypatch: pytest.MonkeyPatch, *told: cluster_pb2.RolloutStatus | Exception | None
) -> None:
    """What a router tells, look by look, the last for ever. None: of no rollout."""
    monkeypatch.setattr("twolane.cli.rollout._latest", looks(*told))
    monkeypatch.setattr("twolane.cli.rollout._POLL_S", 0.0)
    monkeypatch.setattr("twolane.cli.patience._EVERY_S", 0.0)


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


UNTOLD = "no controller has told this router of the rollout"


@pytest.mark.parametrize("also", ["", " --json"])
@pytest.mark.parametrize(("end", "code"), [("done", 0), ("undone", 1)])
def test_a_rollout_of_which_no_controller_tells_is_waited_for(
    end: str, code: int, also: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routers tell none for as long as the controller is silent, as one that starts again is."""
    answers(monkeypatch, None, None, rollout("running"), None, None, rollout(end))
    done = run(door, f"rollout start /models/b --yes --wait{also}")
    assert done.exit_code == code, done.output
    told = (done.stderr if also else done.stdout).splitlines()
    running = "running: 0 of 0 workers new, /models/b"
    first = told.index(UNTOLD)
    assert told[first : first + 3] == [UNTOLD, running, UNTOLD]


def test_a_rollout_of_which_no_controller_tells_again_is_not_over_at_the_end_of_the_wait(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, rollout("running"), None)
    done = run(door, "rollout start /models/b --yes --wait --timeout-s 0.2")
    assert done.exit_code == 5, done.output
    assert f"Error: not over after 0.2 s: {UNTOLD}" in done.stderr


def test_a_step_that_changes_nothing_waits_for_a_rollout_only_if_there_is_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.cli.rollout.change", lambda *_, **__: None)
    answers(monkeypatch, None)
    assert run(door, "rollout resume --yes --wait").exit_code == 0
    answers(monkeypatch, rollout("running"), None, rollout("paused"))
    done = run(door, "rollout resume --yes --wait")
    assert done.exit_code == 1, done.output
    assert UNTOLD in done.output


@pytest.mark.parametrize("line", ["start /models/b", "resume"])
def test_a_wait_outlives_the_router_that_it_asks(
    line: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = UnavailableError("it ends")
    answers(monkeypatch, rollout("running"), gone, gone, rollout("done"))
    done = run(door, f"rollout {line} --yes --wait")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines()[-1] == "the router answers again"


@pytest.mark.parametrize("share", ["0%", "0", "100%", "-1%", "many"])
def test_canary_without_a_share_is_refused(share: str, door: Door) -> None:
    done = run(door, f"rollout start /models/b --canary {share} --yes")
    assert done.exit_code == 2
    assert f"{share} is no share: give one like 5%, or no --canary" in done.output


def test_relative_path_is_refused_as_the_hosts_have_another_folder(door: Door) -> None:
    done = run(door, "rollout start models/b --yes")
    assert done.exit_code == 2
    assert "models/b is not an absolute path: it is one of the hosts'" in done.output
