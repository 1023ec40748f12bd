"""What the benchmark of traces takes for sampled, and what it makes of its pairs."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from benchmarks.tracing.cost import Pairs, shares, traceparent
from twolane.params import SamplingParams
from twolane.router.requests.request import Job
from twolane.router.requests.trace_context import CALLED_BY, TraceHeaders
from twolane.router.tracing import RequestTraces


@pytest.mark.parametrize("sampled", [True, False])
def test_the_router_traces_the_requests_of_one_half_of_a_pair_only(sampled: bool) -> None:
    traces = RequestTraces(DEFAULT_ON, lambda record: None)
    job = Job(submission_id="f" * 32, request_id="", model="m", token_ids=(), arrived=0.0,
              params=SamplingParams())  # fmt: skip
    before = CALLED_BY.set(TraceHeaders(traceparent(sampled=sampled)))
    try:
        context = traces.traced(job).trace
    finally:
        CALLED_BY.reset(before)
    assert context is not None
    assert context.parent_id, "the header is understood"
    assert context.is_sampled == sampled


def test_a_cost_is_found_among_bursts_that_differ_by_more() -> None:
    off = [1_000.0 + 100 * (nth % 7) for nth in range(70)]
    on = [us + 50 + (-1) ** nth for nth, us in enumerate(off)]
    figures = Pairs(on, off).figures()
    assert figures["us_a_request_without"] == 1_300
    low, high = figures["added_us_95"]
    assert low <= figures["added_us"] <= high
    assert (low, high) == pytest.approx((50, 50), abs=2)
    assert 1.03 < figures["ratio_95"][0] < figures["ratio"] < figures["ratio_95"][1] < 1.06


def test_the_share_of_a_trace_takes_its_cost_from_the_cheapest_requests() -> None:
    long, short = Pairs([9_000.0, 5_000.0], [5_000.0, 5_000.0]), Pairs([600.0] * 2, [500.0] * 2)
    found = shares({"long": long, "short": short})
    assert found == {"long": [0.02] * 3, "short": [0.2] * 3}
