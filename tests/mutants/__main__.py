"""Takes each guard away in a copy of the tree, and demands that its tests fail.

    python -m tests.mutants [GUARD ...]

Fails when a guard is not found, when a test does not fail without it, when a named test fails with
it, when a `# guard:` line has no mutant, or when a required guard has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS, REQUIRED

ROOT = Path(__file__).resolve().parents[2]


PACKAGES = (
    "twolane", "router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine",
    "deploy", "benchmarks",
)  # fmt: skip
_MARK = re.compile(r"^\s*(?P<code>\S.*?)\s+# guard: (?P<names>.+)$")


def main(wanted: list[str]) -> int:
    mutants = [m for m in MUTANTS if not wanted or m.guard in wanted]
    complaints = audit() if not wanted else []
    if not mutants:
        complaints.append(f"no mutant of {', '.join(wanted)}")
    with tempfile.TemporaryDirectory(prefix="twolane-mutants-") as folder:
        copy = Path(folder) / "tree"
        ignore = shutil.ignore_patterns(
            "__pycache__", "results", ".venv", ".git", "build", "dist", ".*_cache", ".hypothesis"
        )
        shutil.copytree(ROOT, copy, ignore=ignore)
        tests = sorted({test for m in mutants for test in m.tests})
        failed = failing(copy, tests)
        complaints += [f"{test} fails with every guard in place" for test in failed]
        if not failed:
            for mutant in mutants:
                complaints += try_without(copy, mutant)
    for complaint in complaints:
        print(f"ERROR: {complaint}")
    print(f"{len(mutants)} guards taken away, {len(complaints)} complaints")
    return 1 if complaints else 0


def audit() -> list[str]:
    """Every marked guard has a mutant, and every required guard is marked somewhere."""
    complaints: list[str] = []
    known = {(m.file, m.find, m.guard) for m in MUTANTS}
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        file = str(path.relative_to(ROOT))
        for mark in filter(None, map(_MARK.match, path.read_text().splitlines())):
            complaints += [
                f"{file}: guard {name!r} has no mutant: {mark['code']}"
                for name in mark["names"].split(", ")
                if (file, mark["code"], name) not in known
            ]
    guards = {m.guard for m in MUTANTS}
    return complaints + [f"no mutant of {name!r}" for name in REQUIRED if name not in guards]


def try_without(copy: Path, mutant: Mutant) -> list[str]:
    """Complaints about one mutant. The copy is as before afterwards."""
    path = copy / mutant.file
    original = path.read_text()
    pattern = re.escape(mutant.find) + rf"  # guard: (?:.*, )?{re.escape(mutant.guard)}(?:,|$)"
    n_found = len(re.findall(pattern, original, flags=re.MULTILINE))
    if n_found != 1:
        return [f"{mutant.file}: guard {mutant.guard!r} found {n_found} times: {mutant.find}"]
    path.write_text(original.replace(f"{mutant.find}  # guard:", f"{mutant.replace}  # gone:"))
    begun = time.monotonic()
    try:
        failed = failing(copy, list(mutant.tests))
    finally:
        path.write_text(original)
    survived = [test for test in mutant.tests if test not in failed]
    verdict = "SURVIVED" if survived else "killed"
    print(f"{mutant.guard:12} {mutant.file:40} {verdict:9} {time.monotonic() - begun:4.1f} s")
    for test in mutant.tests:
        print(f"             {test}")
    return [f"{test} passes without {mutant.guard!r} in {mutant.file}" for test in survived]


def failing(copy: Path, tests: list[str]) -> list[str]:
    """Those of the tests that ran and failed. Anything but pass and fail is an error of ours."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1) or re.search(r"\d+ error", done.stdout):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout}{done.stderr}")
    failed = re.findall(r"^FAILED (\S+)", done.stdout, flags=re.MULTILINE)
    return [test for test in tests if any(re.split(r"\[", f)[0] == test for f in failed)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
