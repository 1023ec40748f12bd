"""Bounds of own time hold on a machine that stalls, and on no product that does."""

from __future__ import annotations

import time

import pytest

from tests.own_time import OwnTime, _LateTime, own_time


class Machine:
    def __init__(self) -> None:
        self.now = self.lost = 100.0

    def passes(self, s: float, *, lost: float = 0.0) -> None:
        self.now += s
        self.lost += lost


@pytest.mark.parametrize(
    ("passed_s", "lost_s", "own_s"),
    [
        (3.0, 0.0, 3.0),  # nobody waits for a core: a product that pauses is found out
        (3.0, 2.5, 0.5),
        (60.0, 59.5, 1.0),  # all the time somebody waits: it passes sixty times more slowly
        (6.0, 8.0, 0.1),
    ],
)
def test_time_for_which_the_machine_kept_somebody_waiting_hardly_counts(
    passed_s: float, lost_s: float, own_s: float
) -> None:
    machine = Machine()
    took = OwnTime(lambda: machine.lost, lambda: machine.now)
    machine.passes(passed_s, lost=lost_s)
    assert took.s() == pytest.approx(own_s)
    took.stop()
    machine.passes(5.0)
    assert took.s() == pytest.approx(own_s), "it has been stopped"


def test_what_was_lost_before_hides_no_later_pause() -> None:
    """Several threads wait at once, so more is lost than passes."""
    machine = Machine()
    took = OwnTime(lambda: machine.lost, lambda: machine.now)
    for _ in range(40):
        machine.passes(1.0, lost=1.75)
        took.look()
    for _ in range(20):
        machine.passes(1.0)
        took.look()
    assert took.s() == pytest.approx(20 + 40 / 60)
    assert took.lost_s() == pytest.approx(70)


def test_a_thread_that_sleeps_on_is_late_before_it_wakes() -> None:
    late = _LateTime()
    time.sleep(0.1)
    assert late.s() > 0.05
    late.wake()
    assert late.s() > 0.05


def test_time_of_this_machine_passes() -> None:
    with own_time() as took:
        time.sleep(0.1)
    assert took.s() > 0.001
    assert took.lost_s() >= 0.0
