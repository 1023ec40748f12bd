"""Runs tests in children of the process that has collected them: a trial costs no import.

A child runs the tests it is given, in order, up to the first that fails, and says so by a pipe.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest

_MOST_SILENT_S = 120.0  # of one test, by the clock
_MOST_MEMORY_BYTES = 8 << 30  # that a child may add to its parent's

_START, _PASSED, _FAILED = "> ", "= passed", "= failed"  # lines of a child
_ENDS = tuple(f"{word}\n".encode() for word in (_PASSED, _FAILED))


@dataclass(frozen=True, slots=True)
class Trial:
    """One child's work. `prepare` runs in the child, before the tests."""

    name: str
    prepare: Callable[[], None]
    tests: Sequence[pytest.Item]
    most_cpu_s: int = 60  # of one test: a loop that never ends spends them


@dataclass(frozen=True, slots=True)
class Outcome:
    """`test`: the first that failed, or that its child did not survive. None: all passed."""

    trial: Trial
    test: str | None
    how: str  # "passed", "failed"; "ended": the child did so itself, or never would have
    took_s: float
    output: str  # of a child that ended before its first test


def run_trials(trials: Iterable[Trial], n_at_once: int) -> Iterator[Outcome]:
    """Outcomes as they come. Each child sees the parent as it is when the child begins."""
    waiting = iter(trials)
    running: dict[int, _Child] = {}
    try:
        while True:
            while len(running) < n_at_once and (trial := next(waiting, None)) is not None:
                child = _Child(trial)
                running[child.pipe] = child
            if not running:
                return
            ready, _, _ = select.select(list(running), [], [], 1.0)
            for child in [running[pipe] for pipe in ready]:
                child.read()
            for child in list(running.values()):
                if child.is_over():
                    del running[child.pipe]
                    yield child.outcome()
    finally:
        for child in running.values():
            child.kill()


class _Child:
    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._begun = self._heard = time.monotonic()
        self._told = b""
        self._has_ended = False
        self.pipe, inlet = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _run(trial, inlet)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(self._pid, self._pid)  # as the child does itself: whoever comes first
        os.close(inlet)

    def read(self) -> None:
        news = os.read(self.pipe, 65536)
        self._told += news
        self._heard = time.monotonic()
        self._has_ended = not news or self._told.endswith(_ENDS)

    def is_over(self) -> bool:
        return self._has_ended or time.monotonic() - self._heard > _MOST_SILENT_S

    def outcome(self) -> Outcome:
        self.kill()
        took_s = time.monotonic() - self._begun
        lines = self._told.decode(errors="replace").splitlines()
        starts = [line.removeprefix(_START) for line in lines if line.startswith(_START)]
        last = starts[-1] if starts else None
        if lines and lines[-1] == _PASSED:
            return Outcome(self._trial, None, "passed", took_s, "")
        if lines and lines[-1] == _FAILED:
            return Outcome(self._trial, last, "failed", took_s, "")
        output = "\n".join(line for line in lines if not line.startswith(_START))
        return Outcome(self._trial, last, "ended", took_s, output)

    def kill(self) -> None:
        """And whatever its tests have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)


class _Reporter:
    """Sees whether a test failed, in whichever phase."""

    def __init__(self) -> None:
        self.has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.has_failed = self.has_failed or report.failed


def _run(trial: Trial, pipe: int) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, resource.RLIM_INFINITY))
        trial.prepare()
        reporter = _Reporter()
        for item, following in zip(trial.tests, [*trial.tests, None][1:], strict=True):
            os.write(pipe, f"{_START}{item.nodeid}\n".encode())
            spent = resource.getrusage(resource.RUSAGE_SELF)
            most_s = int(spent.ru_utime + spent.ru_stime) + trial.most_cpu_s
            resource.setrlimit(resource.RLIMIT_CPU, (most_s, resource.RLIM_INFINITY))
            item.config.pluginmanager.register(reporter, "trial")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item.config.pluginmanager.unregister(reporter)
            if reporter.has_failed:
                os.write(pipe, f"{_FAILED}\n".encode())
                os._exit(0)
        os.write(pipe, f"{_PASSED}\n".encode())
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  the child ends here, whatever it was
        os.write(pipe, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(1)
