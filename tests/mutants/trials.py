"""Takes the guards of `sites.py` away, one by one, in a copy of the tree.

    python -m tests.mutants.trials [FILE ...]         demand that each one's recorded test fails
    python -m tests.mutants.trials --hunt [FILE ...]  look for a test of those that have none yet

A hunt first runs the tests once under coverage, so that each guard is tried on those alone that
come by its line, and writes what it finds into sites.toml. What survives stays out, and
`make check` says so: write a test, or give a reason under [spared].
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import coverage

from tests.mutants.fork_runner import Outcome, run_tests, warm_up
from tests.mutants.sites import MODULES, RECORD, ROOT, Record, Site, all_sites, read_record

_TESTS = (
    "tests/kvtransfer", "tests/worker", "tests/decode_worker", "tests/prefill_worker",
    "tests/router", "tests/twolane", "tests/cluster/test_virtual_cluster.py",
)  # fmt: skip
_COVERAGE = ROOT / "build" / "sites.coverage"


def main(arguments: list[str]) -> int:
    hunts = arguments[:1] == ["--hunt"]
    files = arguments[1:] if hunts else arguments
    record = read_record()
    sites = [site for site in all_sites() if not files or site.file in files]
    warm_up()
    with tempfile.TemporaryDirectory(prefix="twolane-sites-") as folder:
        copy = copy_of_tree(Path(folder))
        complaints = hunt(copy, sites, record) if hunts else retry(copy, sites, record)
    for complaint in complaints:
        print(f"ERROR: {complaint}")
    print(f"{len(sites)} guards looked at, {len(complaints)} complaints")
    return 1 if complaints else 0


def copy_of_tree(folder: Path) -> Path:
    ignore = shutil.ignore_patterns(
        "__pycache__", "results", ".venv", ".git", "build", "dist", ".*_cache", ".hypothesis"
    )
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=ignore))


def retry(copy: Path, sites: list[Site], record: Record) -> list[str]:
    """Each site's own test must fail without it."""
    complaints = []
    for site in sites:
        test = record.killed.get((site.file, site.name))
        if test is None:
            continue
        outcome = without(copy, site, [test])
        verdict = "killed" if is_killed(outcome) else "SURVIVED"
        print(f"{verdict:9} {site.file}  {site.name}", flush=True)
        if not is_killed(outcome):
            complaints.append(f"{test} passes without `{site.name}` of {site.file}")
    return complaints


def hunt(copy: Path, sites: list[Site], record: Record) -> list[str]:
    """Look for a test that fails without each site that has no entry."""
    visitors = Visitors()
    survived = []
    for site in sites:
        if (site.file, site.name) in {**record.killed, **record.spared}:
            continue
        begun = time.monotonic()
        test = hunt_one(copy, site, record, visitors)
        took_s = time.monotonic() - begun
        print(f"{test or 'SURVIVED':9} {site.file}  {site.name}  {took_s:.1f} s", flush=True)
        if test is None:
            survived.append(f"{site.file}: nothing fails without `{site.name}`")
            continue
        record.killed[site.file, site.name] = test
        write_record(record)
    return survived


def hunt_one(copy: Path, site: Site, record: Record, visitors: Visitors) -> str | None:
    """First the tests that killed its neighbours, then every other that comes by."""
    near = {test for (file, _), test in record.killed.items() if file == site.file}
    passing = visitors.of(site)
    for tests in ([t for t in passing if t in near], [t for t in passing if t not in near]):
        if not tests:
            continue
        outcome = without(copy, site, [*tests, "-x"])
        if outcome.failed:
            return outcome.failed[0]
        if outcome.status:
            raise SystemExit(f"{site.name}: status {outcome.status}\n{outcome.output}")
    return None


class Visitors:
    """Which tests come by which lines, as coverage recorded it once."""

    def __init__(self) -> None:
        if not _COVERAGE.exists():
            _measure_coverage()
        self._data = coverage.CoverageData(str(_COVERAGE))
        self._data.read()

    def of(self, site: Site) -> list[str]:
        """Test ids, those of the module's own package first."""
        contexts = self._data.contexts_by_lineno(str(ROOT / site.file))
        lines = range(site.first_line, site.last_line + 1)
        tests = {name.split("|")[0] for line in lines for name in contexts.get(line, ()) if name}
        own = f"tests/{site.file.split('/')[0]}/"
        return sorted(tests, key=lambda test: (not test.startswith(own), test))


def _measure_coverage() -> None:
    command = [sys.executable, "-m", "pytest", "-q", *_TESTS, "--cov-context=test", "--cov-report="]
    command += [f"--cov={file.rsplit('/', 1)[0]}" for file in MODULES]
    environment = {**os.environ, "COVERAGE_FILE": str(_COVERAGE)}
    _COVERAGE.parent.mkdir(exist_ok=True)
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def without(copy: Path, site: Site, arguments: list[str]) -> Outcome:
    path = copy / site.file
    original = path.read_text("utf-8")
    path.write_text(site.mutated(original), "utf-8")
    try:
        return run_tests(copy, ["-m", "not gpu and not soak", *arguments])
    finally:
        path.write_text(original, "utf-8")


def is_killed(outcome: Outcome) -> bool:
    return outcome.status != 0


def write_record(record: Record) -> None:
    """Tables by kind and file, in order, so that two hunts merge."""
    lines = ["# Made by `python -m tests.mutants.trials --hunt`; [spared] is written by hand.", ""]
    for kind, entries in (("killed", record.killed), ("spared", record.spared)):
        for file in sorted({file for file, _ in entries}):
            lines.append(f"[{kind}.{quoted(file)}]")
            names = sorted(name for at, name in entries if at == file)
            lines += [f"{quoted(name)} = {quoted(entries[file, name])}" for name in names]
            lines.append("")
    RECORD.write_text("\n".join(lines), "utf-8")


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
