"""What a command says where its output cannot be written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.twolane.conftest import Door
from twolane.cli.app import app
from twolane.security.keys import read_keys


@pytest.mark.parametrize(
    "command",
    [
        ["status"], ["status", "--json"], ["generate", "a b"], ["--help"], ["up", "--help"],
        ["plan", "--help"], ["up", "--print-topology"],
    ],
)  # fmt: skip
def test_a_full_disk_below_the_output_is_told_in_one_line(door: Door, command: list[str]) -> None:
    environment = {**os.environ, "TWOLANE_ENDPOINT": door.endpoint}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "twolane.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert done.stderr == "Error: cannot write the output: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["status", "--endpoint", "127.0.0.1:1"], 3),
        (["drain", "nosuch", "--wait"], 2),
        (["status", "--bad"], 2),
        (["up", "--bad"], 2),
        (["plan"], 2),
    ],
)
def test_an_error_that_nothing_takes_keeps_its_exit_code(
    door: Door, command: list[str], code: int
) -> None:
    environment = {**os.environ, "TWOLANE_ENDPOINT": door.admin}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "twolane.cli", *command],
            stdout=subprocess.PIPE, stderr=full, text=True, env=environment, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize("also", [[], ["--json"]])
def test_a_key_that_could_not_be_shown_is_revoked(tmp_path: Path, also: list[str]) -> None:
    path = tmp_path / "keys.yaml"
    command = ["auth", "create-key", "--tenant", "acme", "--keys", str(path), *also]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "twolane.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    (key,) = read_keys(path).keys
    assert key.revoked
    assert done.stderr.splitlines() == [
        f"key {key.id} could not be shown: it is revoked again",
        "Error: cannot write the output: No space left on device",
    ]
    assert done.returncode == 1


def test_a_key_that_can_neither_be_shown_nor_revoked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are on the same full disk."""
    path = tmp_path / "the keys.yaml"

    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("twolane.security.key_edit.revoke_key", is_full)
    monkeypatch.setattr("twolane.cli.access.auth.print_json", is_full)
    line = ["auth", "create-key", "--tenant", "acme", "--keys", str(path), "--json"]
    done = CliRunner().invoke(app, line)
    (key,) = read_keys(path).keys
    told = done.stderr.splitlines()[0]
    command = f"twolane auth revoke {key.id} --keys '{path}'"
    assert told == f"key {key.id} could not be shown, nor revoked: {command}"
    assert done.exit_code == 1
