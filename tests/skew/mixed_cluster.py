"""Processes of two versions as one cluster: those of this checkout, and frozen ones.

A frozen process runs the code of frozen.tar.xz, stubs included, in the Python of the tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.skew.freeze import ARCHIVE

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "deploy/bundled/model"
OURS, FROZEN = "ours", "frozen"


def unpack(folder: Path) -> Path:
    """Where the frozen version's packages are importable from."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@dataclass
class MixedCluster:
    """A router and its workers, each of a version: `door` is where clients come in."""

    frozen: Path
    stack: ExitStack
    door: str = ""
    hears: str = ""
    workers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start_router(self, version: str) -> None:
        options = ("--port", "0", "--worker-port", "0", "--no-http", "--model", str(MODEL))
        process = self._start(version, "router", *options)
        self.door, self.hears = _address(process), _address(process, "hears workers")

    def start_worker(self, version: str, worker_id: str, role: str) -> None:
        self.workers[worker_id] = process = self._start(
            version, "worker", "--worker-id", worker_id, "--role", role, "--router", self.hears,
            "--engine", "fake", "--model", str(MODEL), "--pages", "512", "--transport", "tcp",
        )  # fmt: skip
        assert _address(process)

    def drain(self, worker_id: str) -> None:
        """It finishes what it has, and takes nothing new."""
        self.workers[worker_id].send_signal(signal.SIGTERM)

    def _start(self, version: str, *arguments: str) -> subprocess.Popen[str]:
        where = self.frozen if version == FROZEN else ROOT
        return self.stack.enter_context(_running(where, *arguments))


@contextmanager
def mixed_cluster(frozen: Path) -> Iterator[MixedCluster]:
    with ExitStack() as stack:
        yield MixedCluster(frozen, stack)


@contextmanager
def _running(where: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "twolane.deploy", *arguments, "--parent-pid", str(os.getpid())],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(where)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()
        assert process.wait(30) == 0


def _address(process: subprocess.Popen[str], what: str = "serves") -> str:
    assert process.stdout is not None
    _, _, where = process.stdout.readline().strip().partition(f" {what} at ")
    assert where, "it did not start"
    return where.split()[0]
