"""One enum names every reason for which a request is not taken."""

from __future__ import annotations

import re
from pathlib import Path

from twolane import errors
from twolane.refusals import Refusal

ROOT = Path(__file__).parents[2]
COUNTED = re.compile(r'"refused\.(\w+)"')
# What can end a request that was taken, and is no refusal.
NOT_REFUSALS = {"twolane_error", "internal", "not_as_expected"}


def test_the_reason_of_every_error_that_refuses_is_a_refusal() -> None:
    reasons = {
        error.reason.lower()
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.TwolaneError)
    }
    assert reasons - NOT_REFUSALS <= set(Refusal)


def test_the_router_counts_no_refusal_by_a_word_of_its_own() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "router").rglob("*.py")]
    assert not [word for source in sources for word in COUNTED.findall(source)]
    assert any("self._count(Refusal." in source for source in sources)


def test_every_refusal_is_explained_where_it_is_defined() -> None:
    source = (ROOT / "twolane" / "refusals.py").read_text(encoding="utf-8")
    for refusal in Refusal:
        assert re.search(rf'{refusal.name} = "{refusal.value}"  # \w', source), refusal
