"""The controllers that a simulation compares: the law and its contenders."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from twolane.deploy.controller.actions import Action, Cancel, Delete, Drain, Start, Why
from twolane.deploy.controller.forecast import ForecastConfig
from twolane.deploy.controller.law import decide
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Need, Role, State
from twolane.deploy.controller.observer import Observer, ObserverConfig
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.cluster import Cluster, Slo


class Law:
    """The autoscaler itself: its observer, fed with the cluster's signals, and `decide`."""

    def __init__(self, limits: Limits, observer: Observer) -> None:
        self._limits = limits
        self._observer = observer
        self._began_s: float | None = None

    def decide(self, now: float, cluster: Cluster) -> Sequence[Action]:
        hardware = cluster.config.hardware
        if self._began_s is None:
            self._began_s = now
        for tokens, squares, step_s in cluster.steps:
            self._observer.prefill_step(tokens, squares, step_s)
        for worker in cluster.workers:
            if rows := worker.rows:
                step_s = hardware.decode.step_s(rows, worker.context)
                self._observer.decode_step(rows, int(worker.context), step_s)
        for took_s in cluster.started:
            self._observer.started(took_s)
        seen = self._observer.observe(
            now,
            cluster.signals(),
            cluster.views(),
            attainment=cluster.attainment(),
            waiting=cluster.waiting_for_any(),
            last_down_s=cluster.last_down_s,
            flipped_s=cluster.flipped_s,
            began_s=self._began_s,
        )
        actions = decide(now, seen, self._limits)
        for action in actions:
            if isinstance(action, Cancel):
                self._observer.start_failed(now)
        return actions


def the_law(hardware: Hardware, slo: Slo, limits: Limits, forecast: ForecastConfig) -> Law:
    """The law as it ships: it starts from the GPU's measured priors."""
    config = ObserverConfig(ttft_s=slo.ttft_s, gap_s=slo.gap_s, forecast=forecast)
    return Law(limits, Observer(hardware, limits, config))


class FairHpa:
    """Two well-tuned Kubernetes autoscalers, one for each pool, that delete drained workers
    only: prefill at 70 % of the tokens per second that a worker computes, decode at 70 % of the
    rows that it may have within the SLO. Every 15 s, tolerance 10 %, down after 300 s, and neither
    beyond what the other leaves of the budget."""

    _TARGET = 0.7

    def __init__(self, budget: int, prefill_per_s: float, rows_of_one: int) -> None:
        self._budget = budget
        self._one = {Role.PREFILL: prefill_per_s, Role.DECODE: float(rows_of_one)}
        self._load = dict.fromkeys(Role, 0.0)
        self._wanted: dict[Role, deque[tuple[float, int]]] = {role: deque() for role in Role}
        self._tokens = 0

    def decide(self, now: float, cluster: Cluster) -> Sequence[Action]:
        signals = cluster.signals()
        arriving = (signals.prompt_tokens - self._tokens) / cluster.config.decide_s
        self._tokens = signals.prompt_tokens
        for role, value in ((Role.PREFILL, arriving), (Role.DECODE, float(signals.rows))):
            self._load[role] += (value - self._load[role]) * cluster.config.decide_s / 30
        deletes: list[Action] = [
            Delete(worker.worker_id, NO_REASON) for worker in cluster.views() if worker.has_ticket
        ]
        if now % 15 >= cluster.config.decide_s:
            return deletes
        free = self._budget - cluster.held_gpus
        actions: list[Action] = []
        for role in Role:
            members = [
                w for w in cluster.workers if role in w.roles and w.state is not State.DRAINING
            ]
            n = len(members)
            wanted = self._wish(now, role, n, sum(w.state is State.READY for w in members))
            ups = min(max(0, wanted - n), free)
            actions += [Start(frozenset({role}), 1, NO_REASON)] * ups
            free -= ups
            ready = sorted((w for w in members if w.state is State.READY), key=lambda w: w.rows)
            downs = min(max(0, n - wanted), len(ready) - 1)
            actions += [Drain(worker.worker_id, NO_REASON) for worker in ready[: max(0, downs)]]
        return [*actions, *deletes]

    def _wish(self, now: float, role: Role, n: int, ready: int) -> int:
        ratio = self._load[role] / (max(1, ready) * self._one[role] * self._TARGET)
        wish = n if abs(ratio - 1) < 0.1 else max(1, math.ceil(ready * ratio))
        wish = min(wish, max(2 * n, n + 4))
        history = self._wanted[role]
        history.append((now, wish))
        while history[0][0] < now - 300:
            history.popleft()
        return max(value for _, value in history) if wish < n else wish


NO_REASON = Why(
    role=Role.PREFILL, need=Need(workers=0, soon=0, kept=0, load=0.0, busy=0.0), have=0, target=0
)  # what a baseline has to say of its reasons
