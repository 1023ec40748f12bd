from dataclasses import replace

import pytest

from benchmarks.load.compare import compare, show
from benchmarks.load.record import Record, Slo
from benchmarks.load.summary import Point, Run, failures, held_by_seed, measure, served_rate

SLO = Slo(ttft_s=0.3, gap_s=0.05)
LEDGER = {
    "queued_s": 0.01, "prefill_wait_s": 0.0, "prefill_s": 0.08, "transfer_s": 0.002,
    "decode_wait_s": 0.001, "cached_tokens": 16, "transfer_bytes": 2**20, "attempts": 1,
}  # fmt: skip

GOOD = Record(0, 1.0, 0.001, 50, 3, (0.1, 0.12, 0.14), "", LEDGER)
SLOW = Record(1, 2.0, 0.001, 50, 3, (0.4, 0.42, 0.44), "", {**LEDGER, "attempts": 2})
REFUSED = Record(2, 4.0, 0.001, 50, 3, (), "OVERLOADED")
HALTING = Record(0, 1.0, 0.021, 50, 2, (0.1, 0.2), "", LEDGER)
POINT = Point([Run(1, 4.0, [GOOD, SLOW, REFUSED]), Run(2, 1.0, [HALTING])])


def test_a_point_is_measured_over_all_its_runs() -> None:
    figures = measure(POINT, SLO)
    assert (figures["requests"], figures["failed"]) == (4, 1)
    assert figures["offered_per_s"] == pytest.approx(4 / 5.0)
    assert figures["held_share"] == 1 / 4
    assert figures["goodput_per_s"] == pytest.approx(0.25 * 0.8)
    assert figures["ttft_p50_ms"] == pytest.approx(100)
    assert figures["gap_max_ms"] == pytest.approx(100)
    assert figures["gap_p50_ms"] == pytest.approx(20)
    assert figures["first_gap_p50_ms"] == pytest.approx(20)
    assert figures["first_gap_p99_ms"] == pytest.approx(100 - 0.02 * 80)
    assert figures["tpot_p50_ms"] == pytest.approx(20)
    # 8 tokens; the first run ends when its refusal came (4.001 s), the second at 1.2 s.
    assert figures["output_tokens_per_s"] == pytest.approx(8 / (4.001 + 1.2))
    assert figures["resumed_requests"] == 1
    assert figures["cached_prompt_tokens"] == 48
    assert figures["moved_mib"] == pytest.approx(3)
    assert figures["prefill_p50_ms"] == pytest.approx(80)


def test_tokens_that_came_at_once_came_in_one_message() -> None:
    in_pairs = replace(GOOD, token_times_s=(0.1, 0.1, 0.12, 0.12))
    assert measure(POINT, SLO)["tokens_per_message"] == 1
    assert measure(Point([Run(1, 4.0, [in_pairs])]), SLO)["tokens_per_message"] == 2


def test_nothing_answered_gives_no_figures_rather_than_good_ones() -> None:
    figures = measure(Point([Run(1, 4.0, [REFUSED])]), SLO)
    assert figures["held_share"] == 0
    assert figures["goodput_per_s"] == 0
    assert figures["ttft_p99_ms"] is figures["gap_max_ms"] is figures["prefill_p50_ms"] is None


def test_held_share_and_failures_are_told_apart() -> None:
    assert held_by_seed(POINT, SLO) == {"1": pytest.approx(1 / 3), "2": 0.0}
    assert failures(POINT) == {"OVERLOADED": 1}


def test_the_served_rate_ends_at_the_first_rate_that_misses() -> None:
    assert served_rate({4.0: 0.95, 2.0: 1.0, 8.0: 0.5, 16.0: 0.99}) == 4.0
    assert served_rate({2.0: 0.899}) is None


def test_targets_stand_side_by_side_with_ratios_to_the_first() -> None:
    rows = compare(
        {
            "colocated": {"ttft": 40.0, "gap": None, "failed": 0.0},
            "split": {"ttft": 60.0, "gap": 5.0, "failed": 3.0},
            "other": {"ttft": 20.0, "gap": None, "failed": 0.0},
        }
    )
    assert [(row.name, row.values, row.ratios) for row in rows] == [
        ("ttft", (40.0, 60.0, 20.0), (1.5, 0.5)),
        ("gap", (None, 5.0, None), (None, None)),
        ("failed", (0.0, 3.0, 0.0), (None, None)),
    ]


def test_the_table_has_a_column_a_target_and_one_a_ratio() -> None:
    table = show("4/s", {"a": {"x": 1.0}, "b": {"x": 2.5}})
    assert [column.header for column in table.columns] == ["", "a", "b", "b / a"]
    assert [list(column.cells) for column in table.columns] == [["x"], ["1"], ["2.5"], ["2.5"]]
