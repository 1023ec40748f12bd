"""Which tests come by which guard, and how long they take: measured once, into `build/`."""

from __future__ import annotations

import os
import subprocess
import sys
from xml.etree import ElementTree

import coverage

from tests.mutants.sites import MODULES, ROOT, Site

_TESTS = (
    "tests/kvtransfer", "tests/worker", "tests/decode_worker", "tests/prefill_worker",
    "tests/router", "tests/twolane", "tests/cluster/test_virtual_cluster.py",
    "tests/cluster/test_said_again.py", "tests/cluster/test_same_id.py",
    "tests/cluster/test_two_routers.py", "tests/cluster/test_waits.py",
    "tests/cluster/test_hung_engines.py",
)  # fmt: skip
_FOLDER = ROOT / "build" / "sites"
_COVERAGE, _TIMES = _FOLDER / "coverage", _FOLDER / "times.xml"
_LONGEST_S, _MOST_S = 1.0, 6.0  # of a test, and of all that are tried on one guard


class Visits:
    """As they were measured last; remove `build/sites` to measure again."""

    def __init__(self) -> None:
        if not _COVERAGE.exists():
            _measure()
        self._data = coverage.CoverageData(str(_COVERAGE))
        self._data.read()
        self._times = dict(_read_times())

    @property
    def files(self) -> list[str]:
        """Of all tests that passed."""
        return sorted({test.split("::")[0] for test in self._times})

    def tests_of(self, site: Site, near: set[str]) -> list[str]:
        """Ids of those that come by and pass, the quickest first, but `near` before all others."""
        contexts = self._data.contexts_by_lineno(str(ROOT / site.file))
        lines = range(site.first_line, site.last_line + 1)
        if site.exit_line:
            lines = range(site.exit_line, site.exit_line + 1)
        tests = {name.split("|")[0] for line in lines for name in contexts.get(line, ()) if name}
        chosen: list[str] = []
        sum_s = 0.0
        for test in sorted(
            tests & self._times.keys(), key=lambda t: (t not in near, self._times[t])
        ):
            sum_s += self._times[test]
            if chosen and sum_s > _MOST_S:
                break
            chosen.append(test)
        return chosen


def _measure() -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    options = _FOLDER / "coveragerc"
    options.write_text("\n    ".join(("[run]\ninclude =", *MODULES)))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *_TESTS, f"--junitxml={_TIMES}"]
    command += ["--cov", f"--cov-config={options}", "--cov-context=test", "--cov-report="]
    environment = {**os.environ, "COVERAGE_FILE": str(_COVERAGE)}
    subprocess.run(command, cwd=ROOT, env=environment, check=False)  # what fails is left out


def _read_times() -> list[tuple[str, float]]:
    """Seconds of each test that passed, the slow ones left out."""
    return [
        (f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}",
         float(case.attrib["time"]))
        for case in ElementTree.parse(_TIMES).iter("testcase")
        if case.find("failure") is None and case.find("error") is None
        and case.find("skipped") is None and float(case.attrib["time"]) <= _LONGEST_S
    ]  # fmt: skip
