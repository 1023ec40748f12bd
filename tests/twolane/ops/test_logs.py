"""`twolane logs --follow`, while what it follows ends and starts again."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.scripted_admin import ScriptedAdmin
from twolane.cli.app import app
from twolane.cli.ops.logs import unseen
from twolane.v1 import acts_pb2

FIRST, SECOND, FILE = "decode-0 01", "decode-0 02", "the agent of node-a"


def record(n: int, text: str = "a step") -> str:
    return f"2026-01-02 03:04:{n:02},000 I twolane.worker: {text}"


def follow(
    door: Door,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[str, list[str]]],
    option: str = "--follow",
) -> Result:
    """The command ends when no answer is left."""
    left = [
        acts_pb2.ReadLogResponse(source=source, lines=lines, last_line=len(lines))
        for source, lines in answers
    ]
    monkeypatch.setattr(ScriptedAdmin, "logs", iter(left))
    monkeypatch.setattr("twolane.cli.ops.logs._FOLLOW_S", 0.0)
    line = ["logs", "decode-0", *option.split(), "--endpoint", door.admin]
    return CliRunner().invoke(app, line)


def test_worker_that_ends_goes_on_from_its_file_with_what_is_new(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [record(n) for n in range(10)]
    last = [record(11, "it breaks"), "Traceback", "KeyError"]
    done = follow(
        door,
        monkeypatch,
        [
            (FIRST, old[5:]),
            (FIRST, [record(10)]),
            (FILE, [*old, record(10), *last]),
            (FILE, [record(12, "starts")]),
            (SECOND, [record(12, "starts"), record(13, "serves")]),
            (SECOND, [record(14)]),
        ],
    )
    assert done.stdout.splitlines() == [
        *old[5:],
        record(10),
        *last,
        record(12, "starts"),
        record(13, "serves"),
        record(14),
    ]
    assert done.stderr.splitlines()[:2] == [
        f"from its log file, read by {FILE}:",
        f"from {SECOND}:",
    ]


def test_json_has_each_line_once_too(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(FIRST, [record(1)]), (FILE, [record(0), record(1), record(2)])]
    done = follow(door, monkeypatch, answers, "--follow --json")
    found = [json.loads(line)["lines"] for line in done.stdout.splitlines()]
    assert found == [[record(1)], [record(2)]]


@pytest.mark.parametrize(
    ("shown", "lines", "new"),
    [
        ([], [record(1)], [record(1)]),
        (["Traceback"], ["Traceback"], ["Traceback"]),
        ([record(1), "Traceback"], [record(1), "Traceback", "KeyError"], ["KeyError"]),
        ([record(1), "only in the file"], [record(1), record(2)], [record(2)]),
        ([record(5)], [record(1), "Traceback", record(6), "Traceback"], [record(6), "Traceback"]),
        ([record(5)], [record(1)], []),
    ],
    ids=[
        "nothing was shown",
        "no record was shown",
        "a record that was shown in part",
        "a line that one of them lacks",
        "an older incarnation's file",
        "nothing new",
    ],
)
def test_another_source_shows_what_was_not_shown(
    shown: list[str], lines: list[str], new: list[str]
) -> None:
    assert [*unseen(lines, shown)] == new
