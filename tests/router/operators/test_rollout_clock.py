"""How long a rollout has made no step."""

from __future__ import annotations

from twolane.router.operators.rollout_clock import RolloutClock
from twolane.v1 import cluster_pb2


def told(now: str, *, is_new: bool = True, waits_for: str = "") -> cluster_pb2.RolloutStatus:
    its = cluster_pb2.RolloutStatus(state="running", to_dir="/models/b", waits_for=waits_for)
    its.workers.add(name="decode-0", now=now, is_new=is_new)
    return its


def waits_s(clock: RolloutClock, now: float) -> float:
    its = clock.status(now)
    assert its is not None
    return its.waits_s


def test_worker_that_dies_again_and_again_at_its_start_makes_no_step() -> None:
    clock = RolloutClock()
    clock.note(told("drains", is_new=False, waits_for="decode-0 drains"), 0.0)
    clock.note(told("starts", waits_for="decode-0 starts"), 50.0)
    clock.note(told("is not heard by every router", waits_for="decode-0 is not heard"), 300.0)
    clock.note(told("starts", waits_for="decode-0 starts"), 310.0)
    assert waits_s(clock, 700.0) == 650.0
    clock.note(told("drains", is_new=False, waits_for="decode-0 drains"), 710.0)
    assert waits_s(clock, 720.0) == 10.0


def test_rollout_that_waits_for_nothing_and_one_that_was_never_do_not_wait() -> None:
    clock = RolloutClock()
    clock.note(None, 0.0)
    assert clock.status(5.0) is None
    clock.note(told("serves"), 10.0)
    assert waits_s(clock, 99.0) == 0.0
