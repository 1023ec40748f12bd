"""Runs a program where pytest would run the tests: all that it needs is imported and collected."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.mutants.forks import Outcome, Trial, run_trials
from tests.mutants.live_code import LiveCode
from tests.mutants.sites import ROOT

Tests = dict[str, pytest.Item]  # by their ids
Work = Callable[[Tests, LiveCode], list[str]]  # returns complaints


def work_on_tests(names: Iterable[str], work: Work) -> int:
    """Do `work` with all tests of the files that these are in. Prints its complaints; the exit
    status."""
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.devnull  # mutants leave no examples behind
    os.environ["OMP_NUM_THREADS"] = "1"  # children share the cores
    files = sorted({name.split("::")[0] for name in names})
    plugin = _Plugin(work)
    options = ["-q", "-s", "--no-header", "-p", "no:cacheprovider"]
    status = pytest.main([*options, *files], plugins=[plugin])
    for complaint in plugin.complaints:
        print(f"ERROR: {complaint}")
    print(f"{len(plugin.complaints)} complaints")
    return 1 if status not in (0, 5) or plugin.complaints else 0


class _Plugin:
    def __init__(self, work: Work) -> None:
        self._work = work
        self.complaints = ["no tests could be collected"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:
            tests = {item.nodeid: item for item in session.items}
            self.complaints = self._work(tests, LiveCode(ROOT))
        return True


def run_all(trials: Iterable[Trial]) -> Iterator[Outcome]:
    """As many at once as there are cores for us."""
    return run_trials(trials, len(os.sched_getaffinity(0)))


def fail_unchanged(tests: Iterable[pytest.Item]) -> list[str]:
    """Complaints about tests that fail with every guard in place."""
    trials = [Trial(test.nodeid, _nothing, [test]) for test in tests]
    return [
        f"{outcome.trial.name} fails with every guard in place"
        for outcome in run_all(trials)
        if outcome.test is not None
    ]


def _nothing() -> None:
    """Every guard stays in place."""
