"""What a command says where its output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.twolane.conftest import Door


@pytest.mark.parametrize(
    "command", [["status"], ["status", "--json"], ["generate", "a b"], ["--help"]]
)
def test_a_full_disk_below_the_output_is_told_in_one_line(door: Door, command: list[str]) -> None:
    environment = {**os.environ, "TWOLANE_ENDPOINT": door.endpoint}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "twolane.cli", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert done.stderr == "Error: cannot write the output: No space left on device\n"
    assert done.returncode == 1
