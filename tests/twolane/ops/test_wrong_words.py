"""What is said of names, files and settings that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.v1 import admin_pb2


def run(door: Door, line: str) -> Result:
    return CliRunner().invoke(app, [*line.split(), "--endpoint", door.admin])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("drain nobody --wait", "there is no worker 'nobody'; there are decode-0"),
        ("config get nobody", "no setting begins with nobody: `twolane config get` lists them"),
        ("config get router nobody", "no setting begins with nobody"),
        ("config set a.b=1 a.c=1 a.b=2", "a.b is set twice: name each setting once"),
        ("bundle none/x.tar.gz", "none/x.tar.gz: No such file or directory"),
        ("requests trace r1 --perfetto none/x", "none/x: No such file or directory"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(
    line: str, told: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(door, line)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("Error: ")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "line", ["auth list --keys none/keys.yaml", "certs init --dir /proc/nobody/certs"]
)
def test_a_file_that_cannot_be_used_is_named_in_one_line(line: str) -> None:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2, done.output
    (told,) = done.stderr.splitlines()
    assert told.endswith(": No such file or directory")


@pytest.mark.parametrize(
    ("line", "told"),
    [("events", "nothing has happened"), ("events --about nobody", "no events match")],
)
def test_events_that_do_not_match_are_not_said_never_to_have_happened(
    line: str, told: str, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminClient, "call", lambda *_, **__: admin_pb2.ListEventsResponse())
    assert run(door, line).output == f"{told}, as far as routers remember\n"


@pytest.mark.parametrize(
    "line", ["scale decode=99999999999", "scale decode=1 --expect-revision 99999999999999999999"]
)
def test_a_number_too_large_for_a_message_is_refused_in_words(line: str) -> None:
    done = CliRunner().invoke(app, [*line.split(), "--dry-run", "--endpoint", "unix:/nowhere"])
    assert done.exit_code == 2, repr(done.exception)


def test_settings_that_are_all_at_their_defaults_are_said_to_be_so(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminClient, "call", lambda *_, **__: admin_pb2.GetConfigResponse())
    assert run(door, "config diff").output == "every setting is at its default\n"
