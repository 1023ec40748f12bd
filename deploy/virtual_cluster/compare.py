"""The same requests in the fluid model and in a virtual cluster, both sized by the same law, or the
model as the law has sized the cluster.

Steps cost the same in both. What lies between the engine and the client is measured on the virtual
cluster with a lone request (`as_virtual`), as `Hardware` has it of real ones. So what differs is
the system: placement, batching, hand-over, reports that come each second, drains with tickets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from twolane.deploy.controller.actions import (
    Action,
    Cancel,
    Delete,
    Drain,
    Flip,
    Start,
    Undrain,
)
from twolane.deploy.controller.capacity import StepCost
from twolane.deploy.controller.forecast import ForecastConfig
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Role, State
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.cluster import Cluster, ClusterConfig, Controller, Slo
from twolane.deploy.simulator.controllers import NO_REASON, the_law
from twolane.deploy.simulator.experiment import workers_of
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.spec.settings import DECODE, PREFILL
from twolane.deploy.virtual_cluster.replay import Request, play, replay, unlike
from twolane.deploy.virtual_cluster.sized import sized_cluster, waits_at
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
    `missed_with_hand_over` alone. `sizes`: (time, prefill, decode). `wishes`: of a virtual cluster,
    as `SizedCluster` has them."""

    missed: float
    missed_with_hand_over: float
    late_first: float
    late_gaps: float
    worker_hours: float
    most_workers: int
    actions: Mapping[str, int]
    sizes: Sequence[tuple[float, int, int]]
    wishes: Sequence[tuple[float, Mapping[str, str]]] = ()


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


class _Follower:
    """Makes of each worker what a virtual cluster's was to be at that time. Workers are told apart
    by their names there."""

    def __init__(
        self, wishes: Sequence[tuple[float, Mapping[str, str]]], names: Sequence[str]
    ) -> None:
        """`names`: of the workers at the beginning, in the model's order."""
        self._wishes = deque(wishes)
        self._ids = {name: f"worker-{nth}" for nth, name in enumerate(names)}
        self._n_named = len(names)

    def decide(self, now: float, cluster: Cluster) -> Sequence[Action]:
        views = {view.worker_id: view for view in cluster.views()}
        if not self._wishes or self._wishes[0][0] > now:
            return [Delete(view.worker_id, NO_REASON) for view in views.values() if view.has_ticket]
        _, wish = self._wishes.popleft()
        actions: list[Action] = []
        for name, pool in wish.items():
            roles = frozenset({Role(pool)})
            view = views.get(self._ids.get(name, ""))
            if view is None:
                self._ids[name] = f"worker-{self._n_named}"
                self._n_named += 1
                actions.append(Start(roles, 1, NO_REASON))
                continue
            if view.state is State.DRAINING:
                actions.append(Undrain(view.worker_id, NO_REASON))
            if view.roles != roles:
                actions.append(Flip(view.worker_id, roles, NO_REASON))
        for name, worker_id in self._ids.items():
            view = views.get(worker_id)
            if name in wish or view is None or view.state is State.DRAINING:
                continue
            is_starting = view.state is State.STARTING
            actions.append((Cancel if is_starting else Drain)(worker_id, NO_REASON))
        return actions


class _Watched:
    """The law, and the sizes that it has seen. `gpu_s`: of all workers until `span_s`."""

    def __init__(self, law: Controller, span_s: float) -> None:
        self.sizes: list[tuple[float, int, int]] = []
        self.gpu_s = 0.0
        self._law = law
        self._span_s = span_s

    def decide(self, now: float, cluster: Cluster) -> Sequence[Action]:
        if now <= self._span_s:
            self.gpu_s = cluster.tally.gpu_s
        roles = [worker.roles for worker in cluster.workers]
        sizes = sum(Role.PREFILL in its for its in roles), sum(Role.DECODE in its for its in roles)
        if not self.sizes or self.sizes[-1][1:] != sizes:
            self.sizes.append((now, *sizes))
        return self._law.decide(now, cluster)


def in_fluid(case: Case, *, like: Result | None = None) -> Result:
    """`case.hardware` as `as_virtual` has it. As in a virtual cluster, every request counts: those
    that run at the end of the span, too. `like`: of a virtual cluster, whose sizes it is to have
    instead of those by a law of its own."""
    config = ClusterConfig(
        hardware=case.hardware,
        slo=case.slo,
        dt_s=_DT_S,
        start_s=case.start_s,
        flip_s=case.hardware.flip_s,
        knows_slo=True,
        max_wait_s=waits_at(case.slo).max_wait_s,
        decide_s=2.0 if like is None else 10 * _DT_S,
    )
    decides: Controller = the_law(case.hardware, case.slo, case.limits, ForecastConfig())
    if like is not None:
        names = [f"{PREFILL}-{nth}" for nth in range(case.prefill)]
        names += [f"{DECODE}-{nth}" for nth in range(case.decode)]
        decides = _Follower(like.wishes, names)
    law = _Watched(decides, case.span_s)
    cluster = Cluster(config, case.requests, workers_of(case.prefill, case.decode), law)
    longest_s = 2 * case.slo.gap_s * int(case.requests.output_tokens.max())
    tally = cluster.run(case.span_s + case.slo.ttft_s + longest_s)
    assert tally.requests == len(case.requests)
    n = max(1, tally.requests)
    return Result(
        missed=tally.missed_share,
        missed_with_hand_over=tally.missed_share,
        late_first=tally.late_first / n,
        late_gaps=tally.late_gaps / n,
        worker_hours=law.gpu_s / 3600,
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
            wishes=[(at_s - begun_s, wish) for at_s, wish in sized.wishes],
        )

    with virtual_time_runner() as runner:
        return runner.run(main())
