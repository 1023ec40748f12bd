"""No guard of grants, tombstones, sessions and owners stands without a test that needs it."""

from __future__ import annotations

from tests.mutants.__main__ import audit as audit_marks
from tests.mutants.__main__ import misplaced
from tests.mutants.mutants import MUTANTS
from tests.mutants.sites import audit, find_sites

SOURCE = """
class Grants:
    def find(self, key, epoch):
        if key is None:
            return None
        if key.epoch == epoch and self.is_open:
            self.touch(key)
        return key
"""


def test_every_guard_has_a_test_that_fails_without_it_or_a_reason() -> None:
    assert audit() == [], "python -m tests.mutants.trials --hunt"


def test_every_marked_guard_has_a_mutant_and_every_mutant_its_mark() -> None:
    assert audit_marks() + misplaced(MUTANTS) == []


def test_a_guard_is_found_by_what_it_is() -> None:
    sites = find_sites("grants.py", SOURCE)
    assert [site.name for site in sites] == [
        "Grants.find: key is None",
        "Grants.find: key.epoch == epoch",
    ]
    without = [site.mutated(SOURCE) for site in sites]
    assert "if (False):\n            return None" in without[0]
    assert "if (True) and self.is_open:" in without[1]
