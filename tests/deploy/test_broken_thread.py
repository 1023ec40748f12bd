from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("launcher", ["process", "ray"])
def test_a_transport_thread_that_breaks_ends_its_process_and_says_why(
    launcher: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.deploy.broken_thread_process", launcher, str(log)]
    with log.open("ab") as output:
        ended = subprocess.run(
            command, stdout=output, stderr=output, timeout=100, start_new_session=True, check=False
        )
    assert ended.returncode == 1
    said = log.read_text()
    assert "thread landing broke" in said
    assert "ZeroDivisionError: no such luck" in said


def test_a_law_that_breaks_when_a_transport_wakes_a_worker_ends_it_and_says_why() -> None:
    command = [sys.executable, "-m", "tests.deploy.broken_law_process"]
    ended = subprocess.run(command, capture_output=True, timeout=100, text=True, check=False)
    assert ended.returncode == 1
    assert "AssertionError: page 7 was released more often than it was taken" in ended.stderr
