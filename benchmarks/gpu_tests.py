"""Runs `make test-gpu` and saves its outcome: how many tests passed, what failed, what was skipped
and why, and how long it took.

    python -m benchmarks.gpu_tests [--soak --name gpu_tests_soak]

`--soak`: the long ones instead, a hundred kills of each side and 100,000 injected
pages on each transport.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click

from benchmarks.result_options import result_options
from benchmarks.results import save

ROOT = Path(__file__).parents[1]
SLOWEST = 10


def outcome(report: Path) -> dict[str, Any]:
    """Of a JUnit report: counts, names of what failed, reasons of what was skipped with their
    counts, and the slowest tests."""
    failed: set[str] = set()  # one may fail in its call and in its teardown: in two cases
    skipped: Counter[str] = Counter()
    times_s: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        times_s[name] = float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif (skip := case.find("skipped")) is not None:
            skipped[skip.get("message", "")] += 1
    slowest = sorted(times_s, key=lambda name: -times_s[name])[:SLOWEST]
    return {
        "passed": len(times_s) - len(failed) - skipped.total(),
        "failed": sorted(failed),
        "skipped": dict(sorted(skipped.items())),
        "slowest_s": {name: round(times_s[name], 1) for name in slowest},
    }


@click.command(help=__doc__)
@click.option("--soak", is_flag=True, help="The long tests.")
@result_options("gpu_tests")
def main(soak: bool, name: str, folder: Path, commit: str | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        began_s = time.monotonic()
        done = subprocess.run(
            ["make", "test-gpu", f"PYTHON={sys.executable}"],
            cwd=ROOT,
            env=os.environ | {"PYTEST_ADDOPTS": f"--junitxml={report}" + " -m soak" * soak},
            check=False,
        )
        took_s = round(time.monotonic() - began_s, 1)
        if not report.exists():
            sys.exit(f"make test-gpu ended with {done.returncode} and no report")
        found = {"took_s": took_s, **outcome(report)}
    print("saved", save(name, found, folder=folder, commit=commit))
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
