"""What make installs for whom."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("target", "extras"), [("demo", ["serve"]), ("test", ["serve", "dev"]), ("proto", [])]
)
def test_a_target_installs_what_it_needs_and_nothing_else(target: str, extras: list[str]) -> None:
    command = ["make", "PYTHON=python3", "--dry-run", "--always-make", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"pip install .*'\.\[(\w+)\]'", done.stdout) == extras
