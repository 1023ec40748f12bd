"""The fluid model and the virtual cluster, sized by the same law, say the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.priors import hardware
from twolane.deploy.simulator.cluster import Slo
from twolane.deploy.simulator.requests import Requests, poisson, uniform_lengths
from twolane.deploy.spec.settings import ScalerSettings
from twolane.deploy.virtual_cluster.compare import Case, as_virtual, in_fluid, in_virtual, slower
from twolane.deploy.virtual_cluster.sized import waits_at
from twolane.router.config import AdmissionConfig

FACTOR = 16.0  # times as slow as an H200: a few hundred requests fill several workers
SLO = Slo(ttft_s=0.5 * FACTOR, gap_s=0.020 * FACTOR)
START_S = 15.0


def case_of(phases: list[tuple[float, float, int, int]], budget: int, decode: int) -> Case:
    """Phases: requests a second, seconds, tokens of prompts and of answers."""
    rng = np.random.default_rng(1)
    parts, begin_s = [], 0.0
    for rate, for_s, n_prompt, n_answer in phases:
        arrivals_s, _ = poisson(np.full(int(for_s / 0.5), rate), 0.5, rng)
        parts.append(uniform_lengths(arrivals_s + begin_s, n_prompt, n_answer, 0.2, rng))
        begin_s += for_s
    requests = Requests(
        np.concatenate([part.arrivals_s for part in parts]),
        np.concatenate([part.prompt_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
    )
    slow = replace(slower(hardware("h200"), FACTOR), start_s=START_S, flip_s=0.5)
    return Case(
        requests=requests,
        span_s=begin_s + 10.0,
        hardware=as_virtual(slow, SLO),
        slo=SLO,
        limits=Limits(budget_gpus=budget, kept_s=40.0, most_kept_s=40.0, calm_s=10.0),
        prefill=1,
        decode=decode,
        start_s=START_S,
    )


def test_requests_wait_as_long_as_the_router_lets_them_at_the_clusters_pace() -> None:
    usual = ScalerSettings().slo_ttft_s
    assert waits_at(Slo(ttft_s=usual, gap_s=0.02)) == AdmissionConfig()
    slow = waits_at(Slo(ttft_s=FACTOR * usual, gap_s=0.02 * FACTOR))
    assert slow.max_wait_s == FACTOR * AdmissionConfig().max_wait_s
    assert slow.queue_timeout_s == FACTOR * AdmissionConfig().queue_timeout_s


MORE_AND_LESS = [(1.0, 40.0, 1024, 24), (3.0, 60.0, 1024, 24), (1.0, 60.0, 1024, 24)]
LONG_THEN_SHORT = [(0.6, 70.0, 4096, 16), (3.0, 80.0, 256, 8)]


@pytest.mark.parametrize(
    ("phases", "decode", "budget", "deeds"),
    [(MORE_AND_LESS, 1, 8, {"start", "drain"}), (LONG_THEN_SHORT, 2, 3, {"flip"})],
)
def test_misses_agree_to_half_a_point_and_gpu_hours_to_a_twentieth(
    phases: list[tuple[float, float, int, int]], decode: int, budget: int, deeds: set[str]
) -> None:
    """The real controller, router and workers, in 2 s of CPU each."""
    case = case_of(phases, budget, decode)
    fluid, virtual = in_fluid(case), in_virtual(case)
    same = in_fluid(case, like=virtual)
    assert virtual.missed == pytest.approx(same.missed, abs=0.005)
    assert virtual.worker_hours == pytest.approx(same.worker_hours, rel=0.02)
    assert [its[1:] for its in virtual.sizes if its[0] < case.span_s][-1] == same.sizes[-1][1:]
    assert virtual.missed == pytest.approx(fluid.missed, abs=0.005)
    assert virtual.worker_hours == pytest.approx(fluid.worker_hours, rel=0.05)
    assert deeds <= set(virtual.actions)
    assert max(virtual.most_workers, fluid.most_workers) <= budget
