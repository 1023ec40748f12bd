"""The fluid model against the real router and workers under virtual time, at equal step times.

The same requests arrive in both. The workers' engine is a fake one whose steps take what was
measured of an H200, so what differs is the system: placement, batching, hand-over, admission.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from twolane.deploy.controller.capacity import StepCost
from twolane.deploy.controller.priors import Hardware, hardware
from twolane.deploy.simulator.cluster import Cluster, ClusterConfig, Slo
from twolane.deploy.simulator.experiment import workers_of
from twolane.deploy.simulator.requests import Requests, poisson, uniform_lengths
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.params import SamplingParams
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import cluster_pb2
from twolane.worker.steps.step_runner import TimedEngine

SLO = Slo(ttft_s=0.3, gap_s=0.020)


def as_the_fake_has_it() -> Hardware:
    """The measured costs, in the form in which the fake engine counts: one fixed cost for both
    kinds of steps, one for each token of context, nothing more for long prompts, nothing between
    the engine and the client."""
    h200 = hardware("h200")
    each_s = h200.prefill.each_s + h200.decode.more_s
    prefill = StepCost(h200.decode.fixed_s, each_s, 0.0)
    return replace(h200, prefill=prefill, first_token_s=0.0, handover_s=0.0, gap_jitter_s=1e-4)


def burst(seed: int, above: float) -> Requests:
    """Calm, three seconds of `above` a second, calm; 512 tokens in, 24 out, each +-20 %."""
    rng = np.random.default_rng(seed)
    rates = np.concatenate([np.full(8, 40.0), np.full(6, above), np.full(16, 40.0)])
    arrivals_s, _ = poisson(rates, 0.5, rng)
    return uniform_lengths(arrivals_s, 512, 24, 0.2, rng)


def long_prompts(seed: int) -> Requests:
    """Half of them beyond the bound of a worker where the SLO is told; too many for a moment."""
    rng = np.random.default_rng(seed)
    arrivals_s, _ = poisson(np.array([4.0, 12.0, 2.0, 2.0, 2.0]), 1.0, rng)
    return uniform_lengths(arrivals_s, 8_192, 8, 0.9, rng)


def late_in_virtual_time(
    requests: Requests, roles: list[str], made: Hardware, slo: Slo = SLO, *, knows_slo: bool = False
) -> float:
    """The share of requests whose first token was late, as their ledgers have it."""

    def engine(n_pages: int) -> TimedEngine:
        return FakeEngine(
            FakeEngineConfig(
                n_pages=n_pages, step_overhead_s=made.prefill.fixed_s,
                prefill_token_s=made.prefill.each_s - made.decode.more_s,
                decode_row_s=made.decode.each_s,
                context_token_s=made.decode.more_s, max_context_tokens=20_000,
            )
        )  # fmt: skip

    shape = Shape(
        roles=roles, n_pages=20_000, make_engine=engine, step_tokens=made.step_tokens,
        decode_rows=made.rows,
    )  # fmt: skip
    late = []

    async def ask(cluster: VirtualCluster, index: int) -> None:
        await asyncio.sleep(float(requests.arrivals_s[index]))
        some = np.random.default_rng(index)  # no prompt begins like another: none is cached
        prompt = some.integers(0, 256, int(requests.prompt_tokens[index])).tolist()
        n = int(requests.output_tokens[index])
        outcome = await cluster.outcome(prompt, SamplingParams(max_tokens=n, seed=index))
        late.append(outcome.ledger.ttft_s > slo.ttft_s)

    async def main() -> None:
        async with virtual_cluster(shape) as cluster, asyncio.TaskGroup() as tasks:
            if knows_slo:
                told = cluster_pb2.ScalerStatus(ttft_s=slo.ttft_s, gap_s=slo.gap_s)
                report = cluster_pb2.SuperviseRequest(controller_id="c", scaler=told)
                cluster.router.operations.supervise(report)
            for index in range(len(requests)):
                tasks.create_task(ask(cluster, index))

    with virtual_time_runner() as runner:
        runner.run(main())
    return float(np.mean(late))


@pytest.mark.parametrize(
    ("above", "prefill", "decode"),
    [
        pytest.param(60.0, 1, 1, marks=pytest.mark.soak),  # none is late in either
        (95.0, 1, 1),
        pytest.param(120.0, 1, 1, marks=pytest.mark.soak),  # between the overloads beside it
        (190.0, 2, 1),
    ],
)
def test_misses_agree_with_those_of_the_real_router_and_workers(
    above: float, prefill: int, decode: int
) -> None:
    """To half a point. Each case takes 3 s: it runs 800 requests through a whole cluster."""
    made = as_the_fake_has_it()
    requests = burst(1, above)
    config = ClusterConfig(hardware=made, slo=SLO, dt_s=0.02)
    tally = Cluster(config, requests, workers_of(prefill, decode)).run(40)
    fluid = tally.late_first / tally.requests
    real = late_in_virtual_time(requests, ["p"] * prefill + ["d"] * decode, made)
    assert real == pytest.approx(fluid, abs=0.005, rel=0.0)


def test_late_prompts_that_are_longer_than_the_bound_agree_with_the_slo_told_and_without() -> None:
    """To one prompt. Told, the SLO saves three of ten."""
    made, slo = as_the_fake_has_it(), Slo(ttft_s=1.0, gap_s=0.020)
    requests = long_prompts(2)
    n = len(requests)
    assert (n, sum(requests.prompt_tokens > 8_192)) == (20, 11)
    for knows_slo, late in ((True, 7), (False, 10)):
        config = ClusterConfig(hardware=made, slo=slo, dt_s=0.02, knows_slo=knows_slo)
        fluid = Cluster(config, requests, workers_of(1, 1)).run(20).late_first
        assert fluid == late
        real = late_in_virtual_time(requests, ["p", "d"], made, slo, knows_slo=knows_slo)
        assert n * real == pytest.approx(fluid, abs=1.01)
