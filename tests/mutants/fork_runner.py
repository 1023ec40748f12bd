"""Runs pytest in children of one process that has imported the heavy libraries already.

A trial of a mutant is a second's work of tests behind seconds of imports; a fork leaves those out.
Of our own packages nothing is imported before the fork, so that each child sees its own tree.
"""

from __future__ import annotations

import importlib
import os
import re
import select
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

_HEAVY = (
    "pytest", "numpy", "grpc", "grpc.aio", "google.protobuf",
    "torch", "xxhash", "tokenizers", "jinja2", "prometheus_client",
)  # fmt: skip
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed`: ids of tests that failed. `hung`: it was ended for taking too long."""

    failed: tuple[str, ...]
    hung: bool
    output: str
    status: int

    @property
    def ran(self) -> bool:
        """Whether tests were run: anything but pass and fail is a fault of ours or the mutant's."""
        return self.status in (0, 1)


def warm_up() -> None:
    for name in _HEAVY:
        importlib.import_module(name)


def run_tests(tree: Path, arguments: list[str], timeout_s: float = _TIMEOUT_S) -> Outcome:
    """pytest in a child whose packages are those of `tree`."""
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            _run_here(tree, arguments, output.fileno())
        status, hung = _wait(pid, timeout_s)
        output.seek(0)
        text = output.read()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::\S+)", text, flags=re.MULTILINE)
    return Outcome(tuple(failed), hung, text, status)


def _wait(pid: int, timeout_s: float) -> tuple[int, bool]:
    watch = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([watch], [], [], timeout_s)
        if not ended:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), not ended
    finally:
        os.close(watch)


def _run_here(tree: Path, arguments: list[str], output: int) -> None:
    """Never returns."""
    status = 3
    try:
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path.insert(0, str(tree))
        sys.dont_write_bytecode = True
        import pytest

        status = pytest.main(["-q", "-rfE", "-p", "no:cacheprovider", "--tb=line", *arguments])
    except BaseException:  # noqa: BLE001  the child ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))
