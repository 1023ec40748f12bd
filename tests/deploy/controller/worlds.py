"""Observations for tests of the law: small ones by hand, and a world that obeys its actions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from twolane.deploy.controller.actions import Action, Cancel, Delete, Drain, Flip, Start, Undrain
from twolane.deploy.controller.law import decide
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import BOTH, Need, Observation, Role, State, Worker

P, D = Role.PREFILL, Role.DECODE
NOW = 10_000.0


def worker(name: str, roles: Role | frozenset[Role], **given: Any) -> Worker:
    """READY for a long time, unless `given` says otherwise."""
    held = frozenset({roles}) if isinstance(roles, Role) else roles
    fields: dict[str, Any] = {"state": State.READY, "since_s": 0.0, "node": name} | given
    return Worker(worker_id=name, roles=held, **fields)


def pool(role: Role, n: int, **given: Any) -> list[Worker]:
    return [worker(f"{role}-{i}", role, **given) for i in range(n)]


def need(workers: int, **given: Any) -> Need:
    fields = {"soon": workers, "kept": workers, "load": float(workers)} | given
    return Need(workers=workers, **{"busy": fields["load"]} | fields)


def seen(workers: Iterable[Worker], prefill: Need | int, decode: Need | int, **given: Any) -> Any:
    needs = {
        role: need(wanted) if isinstance(wanted, int) else wanted
        for role, wanted in ((P, prefill), (D, decode))
    }
    return Observation(workers=tuple(workers), needs=needs, **given)


def limits(budget: int = 12, *, minimum: int = 1, flips: bool = True, **given: Any) -> Limits:
    pools = {role: PoolLimits(minimum=minimum, flips=flips) for role in Role}
    return Limits(budget_gpus=budget, **({"pools": pools} | given))


def names(actions: Sequence[Action], kind: type) -> list[Any]:
    """The workers of those actions; of starts, their roles."""
    return [
        a.roles if isinstance(a, Start) else a.worker_id for a in actions if isinstance(a, kind)
    ]


def started(actions: Sequence[Action]) -> dict[Role, int]:
    found = dict.fromkeys(Role, 0)
    for roles in names(actions, Start):
        for role in roles:
            found[role] += 1
    return found


class World:
    """A cluster that does what it is asked, in times that are drawn, and whose needs wander."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self.random = Random(seed)
        self.limits = limits
        self.now = 0.0
        self.workers: dict[str, Worker] = {}
        self._due: dict[str, float] = {}
        self._n = 0
        self._wish: dict[Role, float] = dict.fromkeys(Role, 1.0)
        self._kept: dict[Role, list[tuple[float, int]]] = {role: [] for role in Role}
        self._failed = 0
        self._failed_s: float | None = None
        self._last_down_s: float | None = None
        self._flipped_s: dict[Role, float] = {}
        self._idle_s = 0.0

    @property
    def held_gpus(self) -> int:
        return sum(worker.gpus for worker in self.workers.values())

    def step(self) -> list[Action]:
        """Two seconds: things get ready or fail, the law decides, its actions begin."""
        self.now += 2.0
        self._let_happen()
        actions = decide(self.now, self.observe(), self.limits)
        for action in actions:
            self._act(action)
        return actions

    def observe(self) -> Observation:
        some = self.random
        quiet = some.random() < 0.02
        self._idle_s = self._idle_s + 600.0 if quiet else 0.0
        return Observation(
            workers=tuple(self.workers.values()),
            needs={role: self._need(role) for role in Role},
            attainment=some.choice([None, 1.0, 1.0, 0.9]),
            waiting=some.choice([0, 0, 3]),
            idle_s=self._idle_s,
            failed_starts=self._failed,
            failed_s=self._failed_s,
            by_hand_s=self.now - some.uniform(0, 400) if some.random() < 0.1 else None,
            last_down_s=self._last_down_s,
            flipped_s=dict(self._flipped_s),
            start_s=30.0,
            pins={some.choice([P, D]): some.randint(1, 3)} if some.random() < 0.02 else {},
        )

    def _need(self, role: Role) -> Need:
        some = self.random
        if some.random() < 0.01:
            self._wish[role] = some.uniform(0, 0.8 * self.limits.budget_gpus)
        self._wish[role] = min(30.0, max(0.0, self._wish[role] + some.gauss(0, 0.2)))
        workers = math.ceil(self._wish[role])
        history = [*self._kept[role], (self.now, workers)]
        self._kept[role] = [(at, n) for at, n in history if at >= self.now - 240]
        kept = max(n for _, n in self._kept[role])
        return need(workers, soon=max(0, workers - 1), kept=kept, load=self._wish[role])

    def _let_happen(self) -> None:
        for name, due_s in [*self._due.items()]:
            was = self.workers[name]
            if due_s > self.now:
                continue
            del self._due[name]
            if was.state is State.STARTING and self.random.random() < 0.1:
                self._fail(name)
            elif was.state is State.DRAINING:
                self._change(was, has_ticket=True)
            else:
                self._failed = 0
                self._change(was, state=State.READY, since_s=self.now)
        for was in [*self.workers.values()]:
            fate = self.random.random()
            if fate < (0.02 if was.state is State.LOST else 0.0005):
                self._due.pop(was.worker_id, None)
                del self.workers[was.worker_id]  # it died, or is proven to have
            elif fate < 0.001:
                self._due.pop(was.worker_id, None)
                self._change(was, state=State.LOST, since_s=self.now, has_ticket=False)

    def _fail(self, name: str) -> None:
        self._due.pop(name, None)
        del self.workers[name]
        self._failed, self._failed_s = self._failed + 1, self.now

    def _act(self, action: Action) -> None:
        if isinstance(action, Start):
            name, self._n = f"w{self._n}", self._n + 1
            self.workers[name] = Worker(
                worker_id=name, roles=action.roles, state=State.STARTING, since_s=self.now,
                gpus=action.gpus, started_s=self.now, node=f"n{self._n % 5}",
            )  # fmt: skip
            if self.random.random() > 0.1:  # else it never gets ready
                self._due[name] = self.now + self.random.uniform(5, 60)
            return
        was = self.workers[action.worker_id]
        match action:
            case Cancel():
                self._fail(was.worker_id)
            case Delete():
                assert was.has_ticket, "deleted without a ticket"
                self._due.pop(was.worker_id, None)
                del self.workers[was.worker_id]
            case Drain():
                assert was.state is State.READY
                self._last_down_s = self.now
                self._due[was.worker_id] = self.now + self.random.uniform(0, 40)
                self._change(was, state=State.DRAINING, since_s=self.now)
            case Undrain():
                assert was.state is State.DRAINING
                self._due.pop(was.worker_id, None)
                self._change(was, state=State.READY, since_s=self.now, has_ticket=False)
            case Flip(roles=roles):
                assert was.state is State.READY
                self._flipped_s.update(dict.fromkeys(roles, self.now))
                self._due[was.worker_id] = self.now + self.random.uniform(1, 10)
                self._change(was, state=State.FLIPPING, since_s=self.now, roles=roles)

    def _change(self, was: Worker, **new: Any) -> None:
        fields: Mapping[str, Any] = {name: getattr(was, name) for name in Worker.__slots__}
        self.workers[was.worker_id] = Worker(**{**fields, **new})


__all__ = ["BOTH", "NOW", "D", "P", "World", "limits", "names", "need", "pool", "seen", "started",
           "worker"]  # fmt: skip
