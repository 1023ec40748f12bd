import asyncio

import pytest

from benchmarks.control_plane.overhead import Overhead, overhead
from benchmarks.control_plane.router_overhead import (
    AT_ONCE,
    FLAT_TOKENS,
    PACED_TOKENS,
    STEP_S,
    added_ms,
    flat_plan,
    measure,
    paced_plan,
)
from benchmarks.control_plane.router_process import start_bare_door
from benchmarks.load.record import Record

LEDGER = {"prefill_wait_s": 0.003, "prefill_s": 0.004, "ttft_s": 0.008}


def test_time_outside_is_what_neither_worker_nor_a_late_client_spent() -> None:
    # 12 ms after the planned arrival: 2 ms late, 7 ms at the worker, 3 ms elsewhere.
    record = Record(0, 1.0, 0.002, 64, 4, (0.012, 0.014, 0.014, 0.020), "", LEDGER)
    found = overhead([record], cpu_s=0.002, at_once=1)
    assert found.outside_p50_ms == pytest.approx(3)
    assert found.outside_door_p50_ms == pytest.approx(1)
    assert found.tokens_per_cpu_s == pytest.approx(4 / 0.002)
    assert found.tokens_per_message == pytest.approx(4 / 3)
    assert found.wall_s == pytest.approx(0.020)


def test_failed_requests_count_as_failed_and_add_nothing() -> None:
    refused = Record(0, 1.0, 0.002, 64, 4, (), "OVERLOADED")
    found = overhead([refused], cpu_s=0.001, at_once=1)
    assert (found.failed, found.tokens, found.outside_p50_ms) == (1, 0, None)


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_paced_arrivals_keep_the_asked_number_under_way(at_once: int) -> None:
    plan = paced_plan(at_once)
    n_second = PACED_TOKENS * STEP_S
    assert len(plan) / plan.span_s * n_second == pytest.approx(at_once, rel=0.6)
    assert len(flat_plan(at_once, FLAT_TOKENS[at_once])) == at_once


def test_time_added_is_what_a_bare_door_does_not_spend() -> None:
    def at(ttft_s: float) -> Overhead:
        return overhead([Record(0, 0.0, 0.0, 64, 1, (ttft_s,), "", LEDGER)], 0.1, 32)

    figures = {"bare paced": {"32": at(0.009)}, "paced": {"32": at(0.0105), "256": at(1.0)}}
    assert added_ms(figures) == {"32": pytest.approx(1.5)}


def test_a_bare_door_is_measured_like_a_router() -> None:
    with start_bare_door(0.0) as door:
        found = asyncio.run(measure(door, flat_plan(1, 2_000), 1, n_clients=1))
    assert (found.requests, found.failed, found.tokens) == (1, 0, 2_000)
    assert found.router_cpu_s > 0
    assert found.outside_p50_ms is not None
