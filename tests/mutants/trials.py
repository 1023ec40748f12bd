"""Takes the guards of `sites.py` away, one by one, and expects a test to fail.

    python -m tests.mutants.trials [FILE ...]         demand that each one's recorded test fails
    python -m tests.mutants.trials --hunt [FILE ...]  look for a test of those that have none yet
    python -m tests.mutants.trials --with TESTS ...   look among these new tests alone

A hunt first runs the tests once under coverage, so that each guard is tried on those alone that
come by its line, the quickest first, and writes what it finds into sites.toml as it goes. What
survives stays out, and `make check` says so: write a test, or give a reason under [spared].
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.mutants.collected import Tests, fail_unchanged, run_all, work_on_tests
from tests.mutants.forks import Outcome, Trial
from tests.mutants.live_code import LiveCode
from tests.mutants.sites import RECORD, ROOT, Record, Site, all_sites, read_record
from tests.mutants.visits import Visits

_MOST_CPU_S = 5  # of one test: what is recorded is quick
Choice = Callable[[Site, set[str]], list[str]]  # of tests, the first to be tried first


def main(arguments: list[str]) -> int:
    says = str(__doc__).splitlines()[0]
    parser = ArgumentParser(prog="python -m tests.mutants.trials", description=says)
    parser.add_argument("files", nargs="*", metavar="FILE")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--hunt", action="store_true", help="for those that have no test yet")
    modes.add_argument("--with", nargs="+", metavar="TESTS", dest="tests", help="among these alone")
    wanted = parser.parse_args(arguments)
    record = read_record()
    sites = [site for site in all_sites() if not wanted.files or site.file in wanted.files]
    if wanted.hunt:
        visits = Visits()
        return work_on_tests(visits.files, partial(hunt, sites, record, visits.tests_of))
    if wanted.tests:
        return work_on_tests(wanted.tests, partial(hunt, sites, record, None))
    known = [record.killed[site.key] for site in sites if site.key in record.killed]
    return work_on_tests(known, partial(retry, sites, record))


def retry(sites: list[Site], record: Record, tests: Tests, code: LiveCode) -> list[str]:
    """Each site's own test must fail without it, and pass with it."""
    known = [site for site in sites if site.key in record.killed]
    names = sorted({record.killed[site.key] for site in known})
    complaints = [f"there is no test {name}" for name in names if name not in tests]
    here = [name for name in names if name in tests]
    complaints += fail_unchanged(tests[name] for name in here)
    trials = [
        trial_of(site, [tests[record.killed[site.key]]], code)
        for site in known
        if record.killed[site.key] in tests
    ]
    for outcome in run_all(trials):
        verdict = "killed" if outcome.test is not None else "SURVIVED"
        print(f"{verdict:9} {outcome.took_s:5.1f} s  {outcome.trial.name}", flush=True)
        if outcome.test is None:
            complaints.append(f"{outcome.trial.name}: its test passes without it{_why(outcome)}")
    return complaints


def hunt(
    sites: list[Site], record: Record, choose: Choice | None, tests: Tests, code: LiveCode
) -> list[str]:
    """Look for a test that fails without each site that has no entry. None: try all."""
    wanted = {f"{site.file}  {site.name}": site for site in sites if site.key not in record}
    survived = []

    def make_trials() -> Iterator[Trial]:
        for site in wanted.values():
            near = {test for (file, _), test in record.killed.items() if file == site.file}
            names = choose(site, near) if choose is not None else list(tests)
            yield trial_of(site, [tests[name] for name in names if name in tests], code)

    for n, outcome in enumerate(run_all(make_trials()), 1):
        site, n_tests = wanted[outcome.trial.name], len(outcome.trial.tests)
        found = f"{outcome.how} {outcome.test}" if outcome.test else f"SURVIVED {n_tests} tests"
        took = f"{n}/{len(wanted)} {outcome.took_s:5.1f} s"
        print(f"{took}  {outcome.trial.name}: {found}{_why(outcome)}", flush=True)
        if outcome.test is None:
            survived.append(f"{site.file}: nothing fails without `{site.name}`")
        else:
            record.killed[site.key] = outcome.test
            write_record(record)
    return survived


def trial_of(site: Site, tests: list[pytest.Item], code: LiveCode) -> Trial:
    path = ROOT / site.file
    mutate = partial(code.change, path, site.mutated(path.read_text("utf-8")))
    return Trial(f"{site.file}  {site.name}", mutate, tests, _MOST_CPU_S)


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


def _why(outcome: Outcome) -> str:
    return f" ({outcome.output})" if outcome.output else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
