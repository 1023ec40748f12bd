from typing import Any

import numpy as np
import pytest

from benchmarks.traffic.plan import ArrivalKind, PlanConfig, PlanError, make_plan
from benchmarks.traffic.trace import Trace
from benchmarks.traffic.workload import WORKLOADS, Uniform, Workload

TRACE = Trace(np.arange(0.0, 100.0, 2.0), np.arange(100, 150), np.arange(1, 51))


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    config = PlanConfig(rate_per_s=4.0, n_requests=50)
    one, same, other = (make_plan(WORKLOADS["chat"], config, seed) for seed in (1, 1, 2))
    assert (one.arrivals_s == same.arrivals_s).all()
    assert (one.prompt_tokens == same.prompt_tokens).all()
    assert (one.prompt_tokens != other.prompt_tokens).any()
    assert (one.arrivals_s != other.arrivals_s).any()


def test_other_arrivals_leave_the_lengths_as_they_are() -> None:
    plans = [
        make_plan(WORKLOADS["chat"], PlanConfig(arrivals=kind, rate_per_s=2.0, cv=4.0), 5)
        for kind in (ArrivalKind.POISSON, ArrivalKind.BURSTY, ArrivalKind.CONSTANT)
    ]
    assert len({plan.arrivals_s.tobytes() for plan in plans}) == 3
    assert len({plan.prompt_tokens.tobytes() + plan.output_tokens.tobytes() for plan in plans}) == 1


def test_scaled_lengths_are_cut_to_fit_the_context_and_counted() -> None:
    workload = Workload(Uniform(1_000, 1_000), Uniform(300, 300))
    fits = make_plan(workload, PlanConfig(rate_per_s=1.0, scale=0.1, context_tokens=130), 1)
    assert (set(fits.prompt_tokens), set(fits.output_tokens), fits.n_cut) == ({100}, {30}, 0)
    cut = make_plan(
        workload, PlanConfig(rate_per_s=1.0, n_requests=7, scale=0.1, context_tokens=50), 1
    )
    assert (set(cut.prompt_tokens), set(cut.output_tokens), cut.n_cut) == ({25}, {25}, 7)


def test_tiny_scales_leave_at_least_one_token_each_way() -> None:
    plan = make_plan(WORKLOADS["code"], PlanConfig(rate_per_s=1.0, scale=1e-6), 1)
    assert (plan.prompt_tokens.min(), plan.output_tokens.min()) == (1, 1)


def test_a_trace_gives_consecutive_requests_at_its_own_speed() -> None:
    config = PlanConfig(arrivals=ArrivalKind.TRACE, n_requests=10)
    plan = make_plan(TRACE, config, 3)
    assert (np.diff(plan.prompt_tokens) == 1).all()
    assert np.diff(plan.arrivals_s).tolist() == [2.0] * 9
    starts = {int(make_plan(TRACE, config, seed).prompt_tokens[0]) for seed in range(20)}
    assert len(starts) > 5, "the seed picks where in the trace the run begins"


def test_a_rate_stretches_the_trace() -> None:
    config = PlanConfig(arrivals=ArrivalKind.TRACE, rate_per_s=5.0, n_requests=10)
    assert np.diff(make_plan(TRACE, config, 3).arrivals_s) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"rate_per_s": None}, "need a rate"),
        ({"rate_per_s": 0.0}, "rate_per_s is 0"),
        ({"rate_per_s": 1.0, "scale": -1.0}, "scale is -1"),
        ({"rate_per_s": 1.0, "n_requests": 0}, "n_requests is 0"),
        ({"rate_per_s": 1.0, "context_tokens": 1}, "context_tokens is 1"),
    ],
)
def test_absurd_plans_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        PlanConfig(**wrong)


def test_trace_arrivals_of_a_drawn_workload_are_refused() -> None:
    with pytest.raises(PlanError, match="need a trace"):
        make_plan(WORKLOADS["chat"], PlanConfig(arrivals=ArrivalKind.TRACE), 1)
    with pytest.raises(PlanError, match="50 requests, not 51"):
        make_plan(TRACE, PlanConfig(rate_per_s=1.0, n_requests=51), 1)
