"""What routers and workers report is added up into signals."""

from __future__ import annotations

import pytest

from twolane.deploy.controller.reports import Reports
from twolane.v1 import cluster_pb2, worker_pb2


@pytest.mark.parametrize(("told", "each"), [(300, 1.5), (0, 1.0)])
def test_tokens_count_as_rows_got_them_or_one_each_where_a_worker_counts_rows_alone(
    told: int, each: float
) -> None:
    reports, steps = Reports(kv_tokens=1), []
    done = worker_pb2.WorkDone()
    status = cluster_pb2.WorkerStatus(state="alive", load=worker_pb2.LoadReport(done=done))
    for _ in range(2):
        reports.note(0.0, [status], {}, lambda *_: None, lambda *step: steps.append(step))
        done = status.load.done
        done.decode_steps, done.decode_rows, done.decode_context = 4, 200, 8_000
        done.decode_s, done.decode_tokens = 0.04, told
    assert steps == [(50, 2_000, pytest.approx(0.01), each)] * 4
    assert reports.signals.output_tokens == 200 * each


def test_what_a_router_has_counted_before_it_was_heard_is_no_burst() -> None:
    """It started before the controller, and did not answer its first looks."""
    reports = Reports(kv_tokens=1)

    def hears(**traffic: int) -> int:
        told = {name: cluster_pb2.Traffic(prompt_tokens=n) for name, n in traffic.items()}
        reports.note(0.0, [], told, lambda *_: None, lambda *_: None)
        return reports.signals.prompt_tokens

    assert hears(one=5_000) == 0
    assert hears(one=5_100) == 100
    assert hears(one=5_200, late=9_000_000) == 200
    assert hears(one=5_200, late=9_000_050) == 250
    assert hears(one=5_200, late=30) == 280, "it has begun anew since"


def test_what_a_worker_has_written_before_the_first_look_is_none_but_a_new_ones_counts() -> None:
    """The first look is the first one that a router answered."""
    reports, now = Reports(kv_tokens=1), 0.0

    def hears(traffic: dict[str, cluster_pb2.Traffic], *written: int) -> int:
        nonlocal now
        now += 1.0
        loads = [
            worker_pb2.LoadReport(
                done=worker_pb2.WorkDone(decode_steps=1, decode_tokens=n, decode_s=n * 1e-3)
            )
            for n in written
        ]
        told = [
            cluster_pb2.WorkerStatus(worker={"epoch": nth}, state="alive", load=load)
            for nth, load in enumerate(loads, 1)
        ]
        reports.note(now, told, traffic, lambda *_: None, lambda *_: None)
        return reports.signals.output_tokens

    heard = {"one": cluster_pb2.Traffic()}
    assert hears({}) == 0, "no router answers"
    assert hears(heard, 9_000_000) == 0
    assert hears(heard, 9_000_050) == 50
    assert hears(heard, 9_000_050, 900) == 950
    assert hears(heard, 9_000_050, 1_000) == 1_050
    assert hears(heard, 9_000_000, 1_000) == 1_050, "told by a router that has not heard the last"
    assert hears(heard, 9_000_100, 1_000) == 1_100
    assert hears(heard, 9_000_100, 1_000, 8_000_000) == 1_100, "it worked before the first look"
    assert hears(heard, 9_000_100, 1_000, 8_000_010) == 1_110


def test_the_first_worker_of_an_empty_cluster_counts_from_zero() -> None:
    reports, heard = Reports(kv_tokens=1), {"one": cluster_pb2.Traffic()}
    reports.note(0.0, [], heard, lambda *_: None, lambda *_: None)
    load = worker_pb2.LoadReport(done=worker_pb2.WorkDone(decode_tokens=900))
    new = cluster_pb2.WorkerStatus(worker={"epoch": 1}, state="alive", load=load)
    reports.note(0.0, [new], heard, lambda *_: None, lambda *_: None)
    assert reports.signals.output_tokens == 900
