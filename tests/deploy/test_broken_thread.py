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
            command, stdout=output, stderr=output, timeout=30, start_new_session=True, check=False
        )
    assert ended.returncode == 1
    said = log.read_text()
    assert "thread landing broke" in said
    assert "ZeroDivisionError: no such luck" in said
