"""Tables of the documents have the figures of saved results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.record import Slo
from benchmarks.tables import PAGES, TABLES, rewritten, runs_of, served, shares

SLO = Slo(0.3, 0.015)


def saved(folder: Path, *runs: tuple[str, int, float, int]) -> Path:
    """A result with such runs: contender, round, rate, and how many of ten requests are in time."""
    documents = [
        {
            "contender": contender, "round": round_, "rate_per_s": rate_per_s, "seed": 1,
            "halted": "", "failures": {}, "figures": {},
            "requests": {
                "ttft_ms": [30.0] * 10,
                "gap_p99_ms": [10.0] * held + [20.0] * (10 - held),
            },
        }
        for contender, round_, rate_per_s, held in runs
    ]  # fmt: skip
    (folder / "runs.json").write_text(json.dumps({"figures": {"runs": documents}}))
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_is_what_the_results_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert rewritten(text) == text, "python -m benchmarks.tables"


def test_every_table_is_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in text] == []


@pytest.mark.parametrize(
    ("runs", "cell"),
    [
        ([("split", 0, 26.0, 9), ("split", 1, 26.0, 10)], "at least 26"),
        ([("split", 0, 26.0, 9), ("split", 0, 30.0, 8)], "26 (30)"),
        ([("split", 0, 26.0, 9), ("split", 0, 30.0, 9), ("split", 1, 30.0, 8)], "26 (30)"),
        ([("split", 0, 26.0, 8), ("split", 0, 30.0, 9)], "below 26"),
        ([("split", 0, 26.0, 9), ("other", 0, 18.0, 0)], "at least 26"),
    ],
)
def test_a_rate_is_held_if_nine_in_ten_requests_of_every_round_are(
    tmp_path: Path, runs: list[Any], cell: str
) -> None:
    assert served(runs_of("runs", saved(tmp_path, *runs)), "split", SLO) == cell


def test_shares_tell_what_was_given_up_and_what_was_not_measured_twice(tmp_path: Path) -> None:
    first, second = runs_of("runs", saved(tmp_path, ("a", 0, 6.0, 8), ("a", 1, 6.0, 10)))
    assert shares([second, first], SLO) == "0.80, 1.00"
    assert shares([first], SLO) == "0.80 (one round)"
    assert shares([replace(first, halted="12 wait"), second], SLO) == "0.80 (given up), 1.00"


def test_a_table_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError):
        rewritten("<!-- table: of_nobody -->\n<!-- end of table -->")
