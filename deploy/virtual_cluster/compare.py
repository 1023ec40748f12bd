"""The same requests, sized by the same law, in the fluid model and in a virtual cluster.

Steps cost the same in both. What lies between the engine and the client is measured on the virtual
cluster with a lone request (`as_virtual`), as `Hardware` has it of real ones. So what differs is
the system: placement, batching, hand-over, reports that come each second, drains with tickets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from twolane.deploy.controller.actions import Action
from twolane.deploy.controller.capacity import StepCost
from twolane.deploy.controller.forecast import ForecastConfig
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.cluster import Cluster, ClusterConfig, Controller, Slo
from twolane.deploy.simulator.controllers import the_law
from twolane.deploy.simulator.experiment import workers_of
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.virtual_cluster.replay import Request, play, replay, unlike
from twolane.deploy.virtual_cluster.sized import sized_cluster
from twolane.deploy.virtual_cluster.timed import NOISE, shape
from twolane.testing.virtual_time import virtual_time_runner

_P99 = 2.326  # standard deviations
_DT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`span_s`: until when workers count. `prefill`, `decode`: workers at the start."""

    requests: Requests
    span_s: float
    hardware: Hardware
    slo: Slo
    limits: Limits
    prefill: int
    decode: int
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`missed`, `late_first`, `late_gaps`: shares of the requests. The first gap of an answer, in
    which its row comes to the decode worker, is no gap of the fluid model, and counts in
    `missed_with_hand_over` alone. `sizes`: (time, prefill, decode)."""

    missed: float
    missed_with_hand_over: float
    late_first: float
    late_gaps: float
    worker_hours: float
    most_workers: int
    actions: Mapping[str, int]
    sizes: Sequence[tuple[float, int, int]]


def slower(hardware: Hardware, factor: float) -> Hardware:
    """Steps that take `factor` times as long: fewer requests show the same."""

    def scaled(cost: StepCost) -> StepCost:
        return StepCost(factor * cost.fixed_s, factor * cost.each_s, factor * cost.more_s)

    return replace(hardware, prefill=scaled(hardware.prefill), decode=scaled(hardware.decode))


def as_virtual(hardware: Hardware, slo: Slo) -> Hardware:
    """With what the virtual cluster adds to the steps of a lone request, and their noise."""
    n_prompt = 1_024
    prompt = np.random.default_rng(1).integers(0, 60_000, n_prompt).tolist()
    (seen,) = play([Request(0.0, prompt, 3)], shape(hardware, ("p", "d")))
    first_s = seen.ttft_s - hardware.prefill.step_s(n_prompt, n_prompt**2)
    second_s = float(seen.gaps_s[0]) - hardware.decode.step_s(1, n_prompt)
    return replace(
        hardware,
        first_token_s=max(0.0, first_s),
        handover_s=max(0.0, first_s + second_s),
        gap_jitter_s=_P99 * NOISE * slo.gap_s,
    )


class _Watched:
    """The law, and the sizes that it has seen."""

    def __init__(self, law: Controller) -> None:
        self.sizes: list[tuple[float, int, int]] = []
        self._law = law

    def decide(self, now: float, cluster: Cluster) -> Sequence[Action]:
        roles = [worker.roles for worker in cluster.workers]
        sizes = sum(Role.PREFILL in its for its in roles), sum(Role.DECODE in its for its in roles)
        if not self.sizes or self.sizes[-1][1:] != sizes:
            self.sizes.append((now, *sizes))
        return self._law.decide(now, cluster)


def in_fluid(case: Case) -> Result:
    """`case.hardware` as `as_virtual` has it."""
    config = ClusterConfig(
        hardware=case.hardware,
        slo=case.slo,
        dt_s=_DT_S,
        start_s=case.start_s,
        flip_s=case.hardware.flip_s,
    )
    law = _Watched(the_law(case.hardware, case.slo, case.limits, ForecastConfig()))
    cluster = Cluster(config, case.requests, workers_of(case.prefill, case.decode), law)
    tally = cluster.run(case.span_s)
    n = max(1, tally.requests)
    return Result(
        missed=tally.missed_share,
        missed_with_hand_over=tally.missed_share,
        late_first=tally.late_first / n,
        late_gaps=tally.late_gaps / n,
        worker_hours=tally.gpu_s / 3600,
        most_workers=tally.most_gpus,
        actions=tally.actions,
        sizes=law.sizes,
    )


def in_virtual(case: Case) -> Result:
    """The whole system, under virtual time."""
    slo = case.slo

    async def main() -> Result:
        async with sized_cluster(
            case.hardware, slo, case.limits,
            prefill=case.prefill, decode=case.decode, start_s=case.start_s,
        ) as sized:  # fmt: skip
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            seen = await replay(sized.cluster, unlike(case.requests))
            await asyncio.sleep(max(0.0, begun_s + case.span_s - loop.time()))
            held = sized.held
            worker_s = held.worker_s(begun_s + case.span_s)
        return Result(
            missed=float(np.mean([not one.holds(slo, with_hand_over=False) for one in seen])),
            missed_with_hand_over=float(np.mean([not one.holds(slo) for one in seen])),
            late_first=float(np.mean([one.ttft_s > slo.ttft_s for one in seen])),
            late_gaps=float(
                np.mean([one.has_late_gaps(slo, with_hand_over=False) for one in seen])
            ),
            worker_hours=worker_s / 3600,
            most_workers=held.most,
            actions=sized.deeds,
            sizes=[(at_s - begun_s, prefill, decode) for at_s, prefill, decode in held.sizes],
        )

    with virtual_time_runner() as runner:
        return runner.run(main())
