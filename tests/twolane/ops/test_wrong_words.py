"""What is said of names, files and settings that are not there."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.twolane.conftest import Door
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.cli.examples import leaves
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


@pytest.mark.parametrize("time", ["0", "0h", "0.5"])
def test_a_pin_that_ends_at_once_is_refused_and_does_not_stay_for_ever(time: str) -> None:
    line = f"scale decode=3 --for {time} --dry-run --endpoint unix:/nowhere"
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2, repr(done.exception)
    assert f"'{time}' is not a duration like 90s, 10m, 2h or 1d, of 1 to" in done.stderr


def test_settings_that_are_all_at_their_defaults_are_said_to_be_so(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdminClient, "call", lambda *_, **__: admin_pb2.GetConfigResponse())
    assert run(door, "config diff").output == "every setting is at its default\n"


@pytest.mark.parametrize(
    "line",
    [
        "config set router.max_queued=5 --expect-revision 99999999999999999999 --dry-run",
        "rollout start /models/b --extra-workers 99999999999 --dry-run",
        "rollout start /models/b --extra-workers -1 --dry-run",
    ],
)
def test_a_number_that_no_message_holds_is_refused_as_it_is_read(line: str, door: Door) -> None:
    done = run(door, line)
    assert done.exit_code == 2, repr(done.exception)
    assert "is not in the range 0<=x<=" in done.stderr


@pytest.mark.parametrize(
    "line", ["logs {}", "drain {}", "requests trace {}", "kill decode-0 --yes --reason {}"]
)
def test_what_is_not_utf_8_is_refused_in_one_line(line: str, door: Door) -> None:
    done = run(door, line.format("a\udcffb"))
    assert done.exit_code == 2, repr(done.exception)
    assert done.stderr == "Error: an argument or input is not UTF-8\n"


@pytest.mark.parametrize("line", ["bundle {}", "auth create-key --tenant a --keys {}"])
def test_a_name_too_long_for_a_file_is_told_in_one_line(
    line: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOLANE_ENDPOINT", door.admin)
    path = tmp_path / ("x" * 300)
    done = CliRunner().invoke(app, line.format(path).split())
    assert done.exit_code == 2, repr(done.exception)
    assert done.stderr == f"Error: {path}: File name too long\n"


def test_a_link_to_itself_is_told_in_one_line(door: Door, tmp_path: Path) -> None:
    link = tmp_path / "trace.json"
    link.symlink_to(link)
    done = run(door, f"requests trace r1 --perfetto {link}")
    assert done.exit_code == 2, repr(done.exception)
    assert done.stderr == f"Error: {link}: Too many levels of symbolic links\n"


TIMES = [
    (words, parameter)
    for words, command in leaves(app).items()
    for parameter in command.params
    if (parameter.name or "").endswith("_s") and parameter.name != "requests_per_s"
]


def test_all_times_are_known() -> None:
    options = {option for _, parameter in TIMES for option in parameter.opts}
    assert options == {"--timeout-s", "--for", "--since", "--older-than", "--expires-in"}


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e300"])
@pytest.mark.parametrize(
    ("words", "parameter"), TIMES, ids=[f"{words} {its.opts[0]}" for words, its in TIMES]
)
def test_a_time_is_a_number_of_seconds(words: str, parameter: click.Parameter, value: str) -> None:
    with pytest.raises(click.BadParameter, match=f"'{value}' is not a"):
        parameter.type_cast_value(click.Context(leaves(app)[words]), value)
