"""Temporary folders of clusters: those of the dead go, those of the living stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from twolane.deploy.errors import StartError
from twolane.deploy.process.scratch import make_scratch, remove_stale_scratch

MAKE = """
import sys
from twolane.deploy.errors import StartError
from twolane.deploy.process.scratch import make_scratch
print(make_scratch(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_of_a_living_process_stays_though_its_pid_is_unknown_here(tmp: Path) -> None:
    """As where it lives in another PID namespace."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp)},
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.name.startswith(f"twolane-{process.pid}-")
        nobody = folder.rename(tmp / "twolane-4194999-x")  # more than the largest pid
        remove_stale_scratch()
        assert nobody.exists()
        process.kill()
        process.wait()
        remove_stale_scratch()
        assert not nobody.exists()


def test_own_folder_stays_and_is_private(tmp: Path) -> None:
    folder = make_scratch()
    assert folder.parent == tmp
    assert folder.stat().st_mode & 0o777 == 0o700
    remove_stale_scratch()
    assert folder.exists()


def test_folder_without_a_lock_is_judged_by_its_pid(tmp: Path) -> None:
    living, dead = tmp / f"twolane-{os.getpid()}-a", tmp / "twolane-4194999-b"
    foreign = tmp / "twolane-mine"
    for folder in (living, dead, foreign):
        folder.mkdir()
    remove_stale_scratch()
    assert (living.exists(), dead.exists(), foreign.exists()) == (True, False, True)


def test_a_folder_that_cannot_be_made_names_tmpdir(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp / "missing"))
    remove_stale_scratch()
    with pytest.raises(StartError, match="No such file or directory; set TMPDIR to a folder"):
        make_scratch()
