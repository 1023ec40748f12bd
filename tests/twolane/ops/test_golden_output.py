"""What every command for operators prints: to a terminal, into a pipe, and as JSON.

A command joins by a row of `COMMANDS` and, where it asks for something new, an answer of
`ScriptedAdmin`; one that is for clients or needs no cluster, by a row of `test_golden_of_others`.
A command that is in neither fails there. WRITE_GOLDEN=1 writes the files anew: look at them before
you commit them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from tests.twolane.ops.scripted_events import NOW
from twolane.cli.app import app

GOLDEN = Path(__file__).with_name("golden")
COMMANDS = {
    "status": "status",
    "drain": "drain decode-0",
    "drain_dry": "drain decode-0 --dry-run",
    "drain_undo": "drain decode-0 --undo",
    "fence": "fence decode-1 --yes",
    "fence_dry": "fence decode-1 --dry-run",
    "requests_list": "requests list",
    "requests_show": "requests show r1",
    "requests_trace": "requests trace 3f2a9c1e",
    "requests_cancel": "requests cancel r1 --yes",
    "requests_cancel_dry": "requests cancel r1 --dry-run",
    "events": "events --since 10m",
    "events_follow": "events --follow",
    "top": "top --once",
    "logs": "logs decode-0 -n 20",
    "logs_file": "logs decode-0 --file",
    "pages": "pages",
    "pages_check": "pages --check",
    "doctor": "doctor",
    "console": "console",
    "check": "check",
    "check_dry": "check --dry-run",
    "config_get": "config get",
    "config_diff": "config diff",
    "config_set": "config set router.max_queued=2000 --yes",
    "config_set_dry": "config set router.max_queued=2000 --dry-run",
    "config_reload": "config reload --yes",
    "scale": "scale decode=3 --for 1h --yes",
    "scale_dry": "scale decode=3 --dry-run",
    "cordon": "cordon node-b --yes",
    "uncordon": "uncordon node-b --yes",
    "drain_node": "drain-node node-c --yes --no-wait",
    "kill": "kill decode-1 --yes",
    "flip": "flip decode-1 --yes",
    "scaler_status": "scaler status",
    "scaler_explain": "scaler explain",
    "scaler_pause": "scaler pause --yes",
    "scaler_resume": "scaler resume --yes",
    "scaler_dry_run": "scaler dry-run --yes",
    "rollout_start": "rollout start /models/b --canary 5% --yes",
    "rollout_start_dry": "rollout start /models/b --dry-run",
    "rollout_status": "rollout status",
    "rollout_pause": "rollout pause --yes",
    "rollout_resume": "rollout resume --yes --wait",
    "rollout_undo": "rollout undo --yes",
}
EXITS = {"pages_check": 5}  # a worker has not answered
# What is printed as lines, which the terminal breaks.
LINES = {
    *("drain", "drain_dry", "drain_undo", "fence", "fence_dry", "scale", "scale_dry"),
    *("cordon", "uncordon", "drain_node", "kill", "flip", "scaler_pause", "scaler_resume"),
    *(
        "scaler_status",
        "scaler_explain",
        "scaler_dry_run",
        "config_set",
        "config_set_dry",
        "config_reload",
        "rollout_start",
    ),
    *("rollout_start_dry", "rollout_pause", "rollout_undo", "rollout_resume"),
    *("requests_cancel", "requests_cancel_dry", "logs", "logs_file", "console"),
}
ENVIRONMENTS = {
    "terminal": {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"},
    "pipe": {},
    "json": {},
}


def run(door: Door, line: str, environment: dict[str, str]) -> Result:
    arguments = [*line.split(), "--endpoint", door.admin]
    return CliRunner(env=environment).invoke(app, arguments, catch_exceptions=False)


@pytest.fixture(autouse=True)
def _same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    clock = SimpleNamespace(time=lambda: NOW, localtime=time.gmtime, strftime=time.strftime)
    monkeypatch.setattr("twolane.cli.ops.events.time", clock)  # not of gRPC, which has deadlines


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_as_it_was_looked_at(name: str, kind: str, door: Door) -> None:
    line = f"{COMMANDS[name]} --json" if kind == "json" else COMMANDS[name]
    done = run(door, line, ENVIRONMENTS[kind])
    assert done.exit_code == EXITS.get(name, 0), done.output
    check(name, kind, done.stdout)


def check(name: str, kind: str, told: str) -> None:
    """It is as in the file, or becomes so."""
    file = GOLDEN / f"{name}.{kind}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(told)
    assert told == file.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_json_names_its_schema_and_a_pipe_has_no_colours(name: str, door: Door) -> None:
    text = run(door, f"{COMMANDS[name]} --json", {}).stdout
    values = [json.loads(text)] if text.startswith("{\n") else map(json.loads, text.splitlines())
    for value in values:
        assert next(iter(value)) == "schema"
        assert value["schema"].startswith("twolane.v1.")
    piped = run(door, COMMANDS[name], {}).stdout
    assert "\x1b" not in piped
    assert all(line == line.rstrip() for line in piped.splitlines())


@pytest.mark.parametrize("width", [30, 60, 100])
@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - LINES))
def test_nothing_is_cut_in_a_narrow_terminal(name: str, width: int, door: Door) -> None:
    wide = run(door, COMMANDS[name], {}).stdout.split()
    narrow = run(door, COMMANDS[name], {"COLUMNS": str(width)}).stdout
    assert max(map(len, narrow.splitlines())) <= width
    if width > 30:  # words are whole; bars are as long as there is room
        assert {word for word in wide if "█" not in word} <= {*narrow.split()}


@pytest.mark.parametrize("name", sorted(LINES))
def test_lines_are_the_same_in_a_narrow_terminal(name: str, door: Door) -> None:
    line = COMMANDS[name]
    assert run(door, line, {"COLUMNS": "30"}).stdout == run(door, line, {}).stdout
