"""Takes each marked guard away, and demands that its tests fail.

    python -m tests.mutants [GUARD ...]

Fails when a guard is not found, when a test does not fail without it, when a named test fails with
it, when a `# guard:` line has no mutant, or when a required guard has none.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from functools import partial

import pytest

from tests.mutants.collected import Tests, fail_unchanged, run_all, work_on_tests
from tests.mutants.forks import Outcome, Trial, run_trials
from tests.mutants.live_code import LiveCode
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS, REQUIRED
from tests.mutants.sites import ROOT, is_there

PACKAGES = (
    "twolane", "router", "worker", "prefill_worker", "decode_worker", "kvtransfer", "engine",
    "deploy", "benchmarks",
)  # fmt: skip
_MARK = re.compile(r"^\s*(?P<code>\S.*?)\s+# guard: (?P<names>.+)$")


def main(arguments: list[str]) -> int:
    says = str(__doc__).splitlines()[0]
    parser = ArgumentParser(prog="python -m tests.mutants", description=says)
    parser.add_argument("guard", nargs="*", help="of `# guard: NAME`; without one: all guards")
    wanted: list[str] = parser.parse_args(arguments).guard
    if unknown := {*wanted} - {m.guard for m in MUTANTS}:
        parser.error(f"no mutant of {', '.join(sorted(unknown))}")
    mutants = [m for m in MUTANTS if not wanted or m.guard in wanted]
    known = {test for m in mutants for test in m.tests}
    return work_on_tests(known, partial(try_all, wanted, mutants))


def audit() -> list[str]:
    """Every marked guard has a mutant, every required guard is marked somewhere, and every test
    that is named is there."""
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
    complaints += [f"no mutant of {name!r}" for name in REQUIRED if name not in guards]
    named = sorted({(m.guard, test) for m in MUTANTS for test in m.tests})
    return complaints + [
        f"{guard!r}: there is no test {t}" for guard, t in named if not is_there(t)
    ]


def misplaced(mutants: Iterable[Mutant]) -> list[str]:
    """Complaints about mutants whose line is not marked with their guard's name, or twice."""
    return [
        f"guard {m.guard!r} is not there once: {m.file}: {m.find}"
        for m in mutants
        if mutated(m) is None
    ]


def try_all(wanted: list[str], mutants: list[Mutant], tests: Tests, code: LiveCode) -> list[str]:
    complaints = misplaced(mutants) + ([] if wanted else audit())
    trials = []
    for mutant in mutants:
        text = mutated(mutant)
        if text is None:
            continue
        for test in mutant.tests:
            mutate = partial(code.change, ROOT / mutant.file, text)
            name = f"{mutant.guard:20} {mutant.file:42} {test}"
            trials.append(Trial(name, mutate, cases_of(test, tests)))
    complaints += fail_unchanged({case.nodeid: case for t in trials for case in t.tests}.values())
    doubtful = [outcome.trial for outcome in map(tell, run_all(trials)) if outcome.test is None]
    # what waits for nothing to happen may miss it on a busy machine: once more, alone
    for outcome in map(tell, run_trials(doubtful, 1)):
        if outcome.test is None:
            complaints.append(f"passes without its guard: {outcome.trial.name} {outcome.output}")
    return complaints


def tell(outcome: Outcome) -> Outcome:
    verdict = "SURVIVED" if outcome.test is None else "killed"
    print(f"{verdict:9} {outcome.took_s:4.1f} s  {outcome.trial.name}", flush=True)
    return outcome


def cases_of(test: str, tests: Tests) -> list[pytest.Item]:
    """Every set of its parameters: one of them has to fail."""
    return [item for name, item in tests.items() if name.partition("[")[0] == test]


def mutated(mutant: Mutant) -> str | None:
    """The module without the guard; None if it is not found once."""
    original = (ROOT / mutant.file).read_text("utf-8")
    pattern = re.escape(mutant.find) + rf"  # guard: (?:.*, )?{re.escape(mutant.guard)}(?:,|$)"
    if len(re.findall(pattern, original, flags=re.MULTILINE)) != 1:
        return None
    return original.replace(f"{mutant.find}  # guard:", f"{mutant.replace}  # gone:")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
