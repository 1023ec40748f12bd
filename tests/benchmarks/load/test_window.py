from dataclasses import replace

import numpy as np
import pytest

from benchmarks.load.record import Record, Slo
from benchmarks.load.window import CUT_OFF, Watch, Window, WindowConfig, make_window
from benchmarks.traffic.plan import PlanConfig
from benchmarks.traffic.workload import find_workload

CONFIG = WindowConfig(warm_up_s=5.0, n_requests=100, min_s=10.0, cool_down_s=5.0)
SLO = Slo(ttft_s=0.2, gap_s=0.02)


def _window(rate_per_s: float = 20.0) -> Window:
    plan = PlanConfig(rate_per_s=1.0)
    workload = find_workload("8x11")
    return make_window(workload, plan, CONFIG, rate_per_s=rate_per_s, seed=3)


def _follow(watch: Watch, window: Window, ttft_s: float, answer_s: float, until_s: float) -> float:
    """Play a server whose every request takes so long; when the watch ends the run."""
    arrivals = window.plan.arrivals_s
    told: set[tuple[str, int]] = set()
    for at_s in np.arange(0, until_s, 0.25):
        for i in np.flatnonzero(arrivals + ttft_s <= at_s).tolist():
            if ("first", i) not in told:
                told.add(("first", i))
                watch.on_first(i)
        for i in np.flatnonzero(arrivals + answer_s <= at_s).tolist():
            if ("end", i) not in told:
                told.add(("end", i))
                watch.on_record(Record(i, arrivals[i], 0.0, 8, 1, (ttft_s,)))
        if watch.halt(float(at_s)):
            return float(at_s)
    raise AssertionError("the run does not end")


def test_a_window_is_as_long_as_its_requests_need_and_never_too_short() -> None:
    assert CONFIG.span_s(5.0) == 20.0
    assert CONFIG.span_s(50.0) == 10.0
    window = _window(5.0)
    assert (window.from_s, window.to_s) == (5.0, 25.0)
    assert len(window.measured()) == pytest.approx(100, abs=35)


def test_load_goes_on_before_and_after_the_window() -> None:
    window = _window()
    arrivals = window.plan.arrivals_s
    assert (arrivals < window.from_s).sum() == pytest.approx(100, abs=40)
    assert arrivals[-1] >= window.to_s + CONFIG.cool_down_s * 0.9


def test_only_what_arrived_in_the_window_counts_and_all_of_it() -> None:
    window = _window()
    asked = window.measured()
    everything = [
        Record(i, at_s, 0.0, 8, 1, (0.1,)) for i, at_s in enumerate(window.plan.arrivals_s.tolist())
    ]
    picked = window.pick(everything)
    assert [r.index for r in picked] == [r.index for r in asked]
    assert all(0 <= r.arrival_s < 10.0 for r in picked)
    assert sum(window.holds(record) for record in everything) == len(picked)
    assert not any(record.failure for record in picked)
    lost = window.pick(everything[: asked[0].index + 1])
    assert [r.failure for r in lost] == ["", *[CUT_OFF] * (len(asked) - 1)]
    assert not any(SLO.is_held(r) for r in lost[1:])


def test_a_run_ends_when_the_window_has_been_answered() -> None:
    window = _window()
    watch = Watch(window, [SLO])
    ended_s = _follow(watch, window, 0.1, 0.3, until_s=60)
    assert watch.why_halted == ""
    assert window.to_s - 0.5 < ended_s <= window.to_s + 0.75


def test_a_run_ends_early_when_first_tokens_come_ever_later() -> None:
    window = _window()
    watch = Watch(window, [SLO])
    assert _follow(watch, window, 60.0, 60.0, until_s=60) < window.from_s
    assert "wait for their first token" in watch.why_halted


def test_a_run_ends_early_when_answers_take_longer_than_any_slo_allows() -> None:
    window = _window()
    watch = Watch(window, [SLO, replace(SLO, gap_s=0.04)])
    # 0.2 + 11 x 0.04 s may an answer take: 13 under way, and what luck allows
    assert _follow(watch, window, 0.1, 3.0, until_s=60) < window.to_s
    assert watch.why_halted.startswith("2 wait") or "under way" in watch.why_halted


def test_a_stall_that_few_requests_feel_ends_no_run() -> None:
    window = _window()
    watch = Watch(window, [SLO])
    arrivals = window.plan.arrivals_s
    stall_s = (8.0, 10.0)  # 40 of 200 requests come amid it
    for at_s in np.arange(0, 40, 0.25):
        if not stall_s[0] <= at_s < stall_s[1]:
            for i in np.flatnonzero(arrivals <= at_s - 0.1).tolist():
                if arrivals[i] >= 0:
                    watch.on_first(i)
                    watch.on_record(Record(i, arrivals[i], 0.0, 8, 1, (0.1,)))
            arrivals = np.where(arrivals <= at_s - 0.1, np.inf, arrivals)
        if watch.halt(float(at_s)):
            break
    assert watch.why_halted == ""


def test_the_same_seed_plans_the_same_run() -> None:
    assert (_window().plan.arrivals_s == _window().plan.arrivals_s).all()
