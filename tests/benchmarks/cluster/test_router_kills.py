"""What a run of killed routers must show, and the texts that stop its answers."""

from __future__ import annotations

import pytest

from benchmarks.cluster.router_kills import complaint_about, figures_of, progress
from benchmarks.cluster.router_kills_run import Seen
from benchmarks.cluster.stop_string import stop_string

GOOD = {"takeovers": 3, "stopped_after_takeover": 1, "gaps_s": [0.2, 0.3]}


def test_a_text_that_stops_an_answer_occurs_nowhere_before() -> None:
    assert stop_string(["a", "b", "c", "b", "d", "e"], 1) == "d"


def test_a_text_of_several_pieces_begins_and_ends_within_one() -> None:
    assert stop_string(["on", "ce ", "upon", " a", " time", "!"], 2) == "a ti"


def test_half_a_character_stops_nothing() -> None:
    with pytest.raises(ValueError, match="of 1 pieces"):
        stop_string(["a", "b", "\ufffd", " ", "", "z"], 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, ""),
        ({"gaps_s": []}, "no router was killed"),
        ({"stopped_after_takeover": 0}, "no answer was stopped"),
        ({"gaps_s": [0.1] * 50 + [9.0]}, "99th percentile"),
    ],
)
def test_a_run_without_takeovers_stops_or_with_long_gaps_is_not_good_enough(
    change: dict[str, object], complaint: str
) -> None:
    seen = Seen(**{**GOOD, **change})  # type: ignore[arg-type]
    told = complaint_about(seen, gap_s=1.0)
    assert complaint in told if complaint else not told


def test_a_run_says_how_far_it_is() -> None:
    seen = Seen(kills=20, answers=310, takeovers=41, gaps_s=[0.2, 0.35])
    told = progress(seen, n_kills=200, took_s=90.0)
    assert told == (
        "20 of 200 kills in 1.5 min: 310 answers, 41 takeovers, "
        "longest gap of a row that lived 0.35 s"
    )


def test_figures_have_counts_and_quantiles() -> None:
    figures = figures_of(Seen(kills=2, gaps_s=[0.1, 0.2, 0.3]))
    assert figures["kills"] == 2
    assert figures["gaps_s"] == {"n": 3, "p50": 0.2, "p90": 0.28, "p99": 0.298, "max": 0.3}
    assert figures["lost_gaps_s"] == {"n": 0}
