"""The running law: looks at the reports, decides each two seconds, and changes what is desired.

    routers' and workers' reports ─▶ `note` ─▶ signals ─▶ `step` ─▶ what is desired, one decision on
                                                             │
                                                             └─▶ sentences, for people

It knows no clock, no network and no launcher: the caller passes `now`, saves what is desired and
acts on it (`twolane.deploy.controller.reconcile`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from twolane.deploy.controller.actions import Action, Cancel, Delete, Drain, Flip
from twolane.deploy.controller.desired import Desired, Mode
from twolane.deploy.controller.explain import explain, sentence
from twolane.deploy.controller.law import Verdict, judge
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Observation, Role, State, Worker
from twolane.deploy.controller.observer import Observer, ObserverConfig
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.controller.reconcile import View, roles_of
from twolane.deploy.controller.reports import Reports
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.controller.sizing import (
    applied,
    begun,
    has_ticket,
    pins_by_role,
    pools_by_role,
    state_of,
)
from twolane.v1 import cluster_pb2

DECIDE_S = 2.0
FLIP_PATIENCE_S = 30.0
_MOST_DEEDS = 50


class Scaler:
    """Of one cluster. `tell` gets each thing that is done: the worker's name, and a sentence."""

    def __init__(
        self,
        inventory: Inventory,
        limits: Limits,
        hardware: Hardware,
        config: ObserverConfig,
        tell: Callable[[str, str], None],
    ) -> None:
        """Raises ValueError for pools that it cannot size."""
        self._inventory = inventory
        self._pools = pools_by_role(inventory)
        self._limits = limits
        self._config = config
        self._tell = tell
        self._observer = Observer(hardware, limits, config)
        self._reports = Reports(hardware.kv_tokens)
        self._states: dict[str, tuple[State, int, float]] = {}  # by worker: epoch, since when
        self._ready_s: dict[str, float] = {}  # since when each has been ready for the first time
        self._found: set[str] | None = None  # not ready at the first look: their begin was not seen
        self._by_hand: dict[str, float] = {}  # workers that an operator has touched
        self._by_hand_s: float | None = None
        self._last_down_s: float | None = None
        self._flipped_s: dict[Role, float] = {}
        self._decided_s: float | None = None
        self._began_s: float | None = None
        self._seen: Observation | None = None
        self._verdict: Verdict | None = None
        self._deeds: deque[tuple[float, str]] = deque(maxlen=_MOST_DEEDS)
        self._is_rolling = False
        self.n_decisions = 0

    def configure(
        self, inventory: Inventory, limits: Limits, *, ttft_s: float, gap_s: float
    ) -> None:
        """Decide by these from now on. The pools are the same."""
        self._inventory, self._limits = inventory, limits
        self._config = replace(self._config, ttft_s=ttft_s, gap_s=gap_s)
        self._observer.config = self._config

    # What happens

    def note(
        self,
        now: float,
        workers: Iterable[cluster_pb2.WorkerStatus],
        traffic: Mapping[str, cluster_pb2.Traffic],
    ) -> None:
        """What routers tell of themselves and of workers."""
        observer = self._observer
        self._reports.note(now, workers, traffic, observer.prefill_step, observer.decode_step)

    def start_failed(self, name: str, now: float) -> None:
        """A process of that name has ended. That counts if it was starting."""
        state = self._states.get(name)
        if state is not None and state[0] is State.STARTING:
            self._observer.start_failed(now)

    def touched(self, now: float, worker_id: str = "") -> None:
        """An operator has changed a size, or something about that worker."""
        self._by_hand_s = now
        if worker_id:
            self._by_hand[worker_id] = now

    def is_due(self, now: float) -> bool:
        """Whether to decide now. At once where requests wait and no worker serves."""
        if self._decided_s is None or now >= self._decided_s + DECIDE_S:
            return True
        return bool(self._reports.waiting) and not self._states

    # Decisions

    def step(self, now: float, desired: Desired, view: View) -> Desired:
        """One decision; what is desired from now on."""
        self._is_rolling = desired.rolling is not None
        if self._is_rolling:  # its extra workers are no sizes
            self._observe(now, desired, view)
            self._decided_s = now
            return desired
        desired = begun(self._without_stuck_flips(now, desired, view), self._inventory)
        seen = self._observe(now, desired, view)
        self._decided_s = now
        if self.mode(desired) is Mode.PAUSED:
            return desired
        self._seen, self._verdict = seen, judge(now, seen, self._limits)
        self.n_decisions += 1
        if self.mode(desired) is Mode.DRY_RUN:
            return desired
        for action in self._verdict.actions:
            new = applied(desired, self._inventory, view, action)
            if new is None or new == desired:
                continue
            desired = new
            self._did(now, action)
        return desired

    def mode(self, desired: Desired) -> Mode:
        """One that only another version has decides nothing."""
        if desired.mode not in {"", *Mode}:
            return Mode.PAUSED
        return Mode(desired.mode) if desired.mode else Mode.ON

    def _without_stuck_flips(self, now: float, desired: Desired, view: View) -> Desired:
        """A worker that does not take its new role for long is of the pool whose role it has."""
        for name, (state, _, since_s) in self._states.items():
            seen = view.of(name)
            is_stuck = state is State.FLIPPING and now >= since_s + FLIP_PATIENCE_S
            if not is_stuck or desired.seat(name) is None or len(seen.roles) != 1:
                continue
            desired = desired.flipped(name, self._pools[Role(min(seen.roles))].name)
            text = f"give up the flip of {name}: it has not taken its new role"
            self._deeds.append((now, text))
            self._tell(name, text)
        return desired

    def _did(self, now: float, action: Action) -> None:
        if isinstance(action, Drain):
            self._last_down_s = now
        if isinstance(action, Flip):
            self._flipped_s.update(dict.fromkeys(action.roles, now))
        if isinstance(action, Cancel):
            self._observer.start_failed(now)
        text = sentence(action)
        self._deeds.append((now, text))
        if not isinstance(action, Delete):
            self._tell(getattr(action, "worker_id", ""), text)

    def _observe(self, now: float, desired: Desired, view: View) -> Observation:
        workers = tuple(self._worker(now, desired, view, seat.name) for seat in desired.seats)
        names = {worker.worker_id for worker in workers}
        self._states = {name: its for name, its in self._states.items() if name in names}
        if self._began_s is None:
            self._began_s = now
        if self._found is None:
            self._found = {w.worker_id for w in workers if w.state is State.STARTING}
        self._ready_s = {name: at for name, at in self._ready_s.items() if name in names}
        return self._observer.observe(
            now,
            self._reports.signals,
            workers,
            attainment=self._reports.attainment,
            waiting=self._reports.waiting,
            by_hand_s=self._by_hand_s,
            last_down_s=self._last_down_s,
            flipped_s=self._flipped_s,
            pins=pins_by_role(desired, self._pools),
            began_s=self._began_s,
        )

    def _worker(self, now: float, desired: Desired, view: View, name: str) -> Worker:
        seat, seen = desired.seat(name), view.of(name)
        assert seat is not None
        was, epoch, since_s = self._states.get(name, (None, 0, now))
        same = was if epoch in (0, seen.epoch) or was is State.STARTING else None
        state = state_of(desired, self._inventory, view, name, same)
        if state is not was:
            if state is State.READY and was is State.STARTING and not self._is_found(name):
                self._observer.started(max(now - since_s, 1e-3))
            since_s = now
        self._states[name] = state, seen.epoch, since_s
        if state is State.READY:
            self._ready_s.setdefault(name, now)
        is_drained_by_hand = seen.draining and desired.removal(name) is None
        touched_s = self._by_hand.get(name)
        is_touched = touched_s is not None and now < touched_s + self._limits.veto_s
        return Worker(
            worker_id=name,
            roles=frozenset(Role(role) for role in roles_of(self._inventory, seat)),
            state=state,
            since_s=since_s,
            gpus=max(1, len(seat.devices)),
            node=seat.host,
            rows=seen.rows,
            n_above=self._inventory.n_above(seat.host, desired.seats),
            started_s=self._ready_s.get(name, now),
            has_ticket=has_ticket(desired, seen, name) and state is State.DRAINING,
            is_held=is_drained_by_hand or is_touched,
        )

    def _is_found(self, name: str) -> bool:
        """Whether it was starting before this controller looked; not any more, once it is asked."""
        if self._found is None or name not in self._found:
            return False
        self._found.remove(name)
        return True

    # Looking in

    def status(self, now: float, desired: Desired) -> cluster_pb2.ScalerStatus:
        attainment = self._reports.attainment
        mode, limits = self.mode(desired), self._limits
        unit = "GPUs" if any(pool.n_gpus for pool in self._inventory.pools) else "seats"
        status = cluster_pb2.ScalerStatus(
            mode=mode.value,
            budget_gpus=limits.budget_gpus,
            held_gpus=sum(max(1, len(seat.devices)) for seat in desired.seats),
            ttft_s=self._config.ttft_s,
            gap_s=self._config.gap_s,
            wakes=limits.goes_to_zero and mode is Mode.ON,
            attainment=attainment or 0.0,
            has_attainment=attainment is not None,
            decisions=self.n_decisions,
            unit=unit,
            deeds=[cluster_pb2.ScalerDeed(ago_s=now - at, text=text) for at, text in self._deeds],
        )
        if mode is Mode.PAUSED:
            status.reasons.append("it is paused, and decides nothing")
        if self._is_rolling:
            status.reasons.append("a rollout is under way: sizes stay until its end")
        if self._verdict is None or self._seen is None or mode is Mode.PAUSED:
            return status
        if self._is_rolling:
            return status
        status.actions.extend(sentence(action) for action in self._verdict.actions)
        if mode is Mode.DRY_RUN:
            status.reasons.append("a dry run: none of this is done")
        status.reasons.extend(explain(self._verdict, self._seen, limits, unit))
        for role, pool in self._pools.items():
            need, bounds = self._seen.needs[role], limits.pools[role]
            status.pools.add(
                pool=pool.name,
                have=self._verdict.have[role],
                target=self._verdict.targets[role],
                need=need.workers,
                least=bounds.minimum,
                most=bounds.maximum,
                load=need.load,
                capacity_per_s=need.capacity_per_s,
                forecast_per_s=need.forecast_per_s,
            )
        return status
