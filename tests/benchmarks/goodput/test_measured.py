import json

import numpy as np
import pytest

from benchmarks.goodput.measured import Measured, Misses
from benchmarks.goodput.search import Tally
from benchmarks.load.record import Record, Slo
from benchmarks.load.window import CUT_OFF

SLO = Slo(ttft_s=0.3, gap_s=0.02)


def _record(index: int, *token_times_s: float, failure: str = "", late_s: float = 0.0) -> Record:
    return Record(index, index / 10, late_s, 5, len(token_times_s) or 3, token_times_s, failure)


def _measured(records: list[Record], halted: str = "") -> Measured:
    return Measured.of(records, contender="one", round_=0, rate_per_s=4.0, seed=1, halted=halted)


MIXED = [
    _record(0, 0.1, 0.11, 0.12),  # holds
    _record(1, 0.31, 0.32, 0.33),  # late
    _record(2, 0.1, 0.11, 0.14),  # halting
    _record(3, 0.4, 0.5, 0.6),  # both
    _record(4, 0.1, failure="OVERLOADED"),
    _record(5, failure=CUT_OFF),
]


def test_every_miss_has_a_cause() -> None:
    assert _measured(MIXED).misses(SLO) == Misses(failed=2, late=1, halting=1, both=1)
    assert _measured(MIXED).tally(SLO) == Tally(1, 6, 1)
    assert _measured(MIXED, halted="why").tally(SLO).is_hopeless


def test_a_saved_run_is_judged_as_its_records_are() -> None:
    rng = np.random.default_rng(5)
    records = [
        _record(i, *np.cumsum([rng.exponential(0.15), *rng.exponential(0.008, 60)]).tolist())
        for i in range(300)
    ]
    saved = json.loads(json.dumps(_measured(records).to_json()))
    again = Measured.from_json(saved)
    for slo in (SLO, Slo(0.2, 0.04), Slo(0.05, 0.05)):
        held = sum(slo.is_held(record) for record in records)
        assert 0 < held < 300
        assert again.tally(slo) == Tally(held, 300, 1)


@pytest.mark.parametrize(("late_s", "is_late"), [(0.0, False), (0.009, False), (0.02, True)])
def test_a_client_that_sends_late_voids_its_run(late_s: float, is_late: bool) -> None:
    records = [_record(i, 0.1, late_s=late_s) for i in range(20)]
    assert _measured(records).is_late(0.01) is is_late


def test_a_run_without_a_request_knows_nothing() -> None:
    empty = _measured([])
    assert len(empty) == 0
    assert empty.tally(SLO) == Tally(0, 0, 1)
    assert not empty.is_late(0.01)
