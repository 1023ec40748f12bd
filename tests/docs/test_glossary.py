"""The glossary names places that exist, and holds the words that everything else leans on."""

from __future__ import annotations

import re

import pytest

from tests.docs.symbols import ROOT, has_symbol
from tests.docs.tables import rows_of

PLACE = re.compile(r"`([\w/.]+\.(?:py|proto))(?::([\w.]+))?`")
CORE = {
    "page", "prefill", "decode", "transfer", "lease", "ticket", "worker", "role", "request",
    "sample", "row", "attempt", "epoch", "generation", "step", "rank", "door", "grant", "checksum",
    "all-reduce", "submission", "owner", "owner fence", "reservation", "fingerprint", "layout",
    "quarantine", "suspicion", "proof", "colocated", "exact mode", "refusal", "resume",
    "preemption", "transport", "outlet", "landing", "ledger", "tombstone", "launcher", "topology",
    "growth", "prefix index", "retarget",
}  # fmt: skip

ROWS = list(rows_of((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_word_is_defined_where_the_glossary_says(row: list[str]) -> None:
    word, meaning, where = row
    assert meaning.endswith("."), word
    places = PLACE.findall(where)
    assert places, f"{word}: {where!r} names no file"
    for path, symbol in places:
        assert has_symbol(path, symbol), f"{word}: {path}:{symbol} is not there"


def test_no_word_of_the_core_is_missing() -> None:
    assert CORE - {row[0] for row in ROWS} == set()


def test_no_word_is_there_twice() -> None:
    words = [row[0] for row in ROWS]
    assert len(words) == len(set(words))


def test_a_place_that_is_not_there_is_noticed() -> None:
    assert has_symbol("router/members/worker_view.py", "WorkerView.free_pages")
    assert has_symbol("proto/twolane/v1/transfer.proto", "Ticket")
    assert not has_symbol("router/members/worker_view.py", "WorkerView.no_such")
    assert not has_symbol("router/no_such.py", "")
