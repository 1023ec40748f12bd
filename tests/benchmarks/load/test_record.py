import pytest

from benchmarks.load.record import Record, Slo

SLO = Slo(ttft_s=0.3, gap_s=0.05)


def _record(*token_times_s: float, asked: int | None = None, failure: str = "") -> Record:
    asked = len(token_times_s) if asked is None else asked
    return Record(0, 10.0, 0.001, 100, asked, token_times_s, failure)


def test_times_derive_from_the_token_times() -> None:
    record = _record(0.2, 0.24, 0.3)
    assert record.ttft_s == 0.2
    assert record.tpot_s == pytest.approx(0.05)
    assert record.gaps_s.tolist() == pytest.approx([0.04, 0.06])
    assert record.gap_p99_s == pytest.approx(0.04 + 0.99 * 0.02)
    assert record.end_s == pytest.approx(10.3)


def test_a_single_token_has_no_gap_and_no_time_per_token() -> None:
    record = _record(0.2)
    assert (record.tpot_s, record.gap_p99_s) == (None, 0.0)
    assert SLO.is_held(record)


def test_nothing_received_has_no_first_token() -> None:
    record = _record(asked=5, failure="OVERLOADED")
    assert (record.ttft_s, record.tpot_s, record.end_s) == (None, None, 10.001)


@pytest.mark.parametrize(
    ("record", "held"),
    [
        (_record(0.3, 0.34, 0.38), True),
        (_record(0.301, 0.34, 0.38), False),
        (_record(0.1, 0.1 + 0.0501), False),
        (_record(0.1, 0.14, asked=3), False),
        (_record(0.1, 0.14, failure="UNAVAILABLE"), False),
        (_record(asked=3, failure="OVERLOADED"), False),
        # One slow gap in 201: the 99th percentile does not see it, the maximum does.
        (_record(0.1, *(0.1 + 0.01 * i for i in range(1, 201)), 3.0), True),
        # Three in 202 it does see.
        (_record(0.1, *(0.1 + 0.01 * i for i in range(1, 200)), 3.0, 4.0, 5.0), False),
    ],
    ids=["within", "late", "gap", "short", "failed", "refused", "one-outlier", "three-outliers"],
)
def test_slo_is_held_only_by_whole_answers_within_both_bounds(record: Record, held: bool) -> None:
    assert SLO.is_held(record) is held


def test_json_keeps_a_record_to_the_microsecond() -> None:
    record = Record(3, 1.5, 0.25, 7, 3, (0.1, 0.1, 0.123456), "X", {"attempts": 2.0})
    again = Record.from_json(record.to_json())
    assert again.token_times_s == pytest.approx(record.token_times_s, abs=1e-9)
    assert (again.index, again.failure, again.ledger) == (3, "X", {"attempts": 2.0})
