"""One enum names every reason for which a request is not taken."""

from __future__ import annotations

import re
from pathlib import Path

from twolane import errors
from twolane.refusals import Refusal

ROOT = Path(__file__).parents[2]
COUNTED = re.compile(r'"refused\.(\w+)"')
# What can end a request that was taken, and is no refusal.
NOT_REFUSALS = {"twolane_error", "internal"}


def test_the_reason_of_every_error_that_refuses_is_a_refusal() -> None:
    reasons = {
        error.reason.lower()
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.TwolaneError)
    }
    assert reasons - NOT_REFUSALS <= set(Refusal)


def test_every_refusal_that_the_router_counts_by_a_word_of_its_own_is_one_of_them() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "router").rglob("*.py")]
    counted = {word for source in sources for word in COUNTED.findall(source)}
    assert {"queue_full", "evicted"} <= counted
    assert counted <= set(Refusal)


def test_every_refusal_is_explained_where_it_is_defined() -> None:
    source = (ROOT / "twolane" / "refusals.py").read_text(encoding="utf-8")
    for refusal in Refusal:
        assert re.search(rf'{refusal.name} = "{refusal.value}"  # \w', source), refusal
