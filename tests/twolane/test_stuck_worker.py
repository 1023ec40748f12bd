"""A worker whose step does not end is seen in the status."""

from __future__ import annotations

from twolane.cli.status import _state
from twolane.status import WorkerInfo
from twolane.v1 import cluster_pb2


def info(step_age_s: float, step_bound_s: float) -> WorkerInfo:
    status = cluster_pb2.WorkerStatus(state="suspect")
    status.load.step_age_s, status.load.step_bound_s = step_age_s, step_bound_s
    return WorkerInfo.from_proto(status)


def test_late_step_is_told_beside_the_state() -> None:
    assert info(12.3, 5.0).is_stuck
    assert _state(info(12.3, 5.0)) == "suspect: a step of 12 s"


def test_step_in_time_and_worker_that_tells_nothing_are_not_stuck() -> None:
    assert not info(4.9, 5.0).is_stuck
    assert not info(0.0, 0.0).is_stuck
    assert _state(info(4.9, 5.0)) == "suspect"
