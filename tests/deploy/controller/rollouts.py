"""A cluster that is nothing but facts, whose workers have revisions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.deploy.controller.inventories import inventory
from tests.deploy.controller.test_reconcile import Facts
from twolane.deploy.controller.acts import Decided
from twolane.deploy.controller.desired import Desired
from twolane.deploy.controller.reconcile import Act, Phase, Verb, next_acts, next_desired
from twolane.deploy.controller.rollout import rolled
from twolane.deploy.controller.rollout_acts import start, step
from twolane.deploy.spec.revision import Fit
from twolane.v1 import acts_pb2

OLD, NEW = "", "/models/new"
STEP = acts_pb2.StepRolloutRequest


@dataclass
class Rolling(Facts):
    """`revisions`: those that processes were started with; NEW never comes up if `is_bad`."""

    revisions: dict[str, str] = field(default_factory=dict)
    is_bad: bool = False
    fit: Fit = field(default_factory=Fit)

    def carry_out(self, act: Act) -> None:
        super().carry_out(act)
        if act.verb is Verb.START:
            seat = self.saved.seat(act.name)
            assert seat is not None
            self.revisions[act.name] = seat.model_dir

    def end(self, name: str) -> None:
        super().end(name)
        del self.revisions[name]

    def happen(self, chance: random.Random, deaths: float = 0.0) -> None:
        """Processes come up and give tickets, or die."""
        for name, seen in list(self.workers.items()):
            is_bad = self.is_bad and self.revisions[name] == NEW
            if seen.phase is Phase.STARTING and chance.random() < 0.5:
                if is_bad:
                    self.end(name)
                else:
                    self.workers[name] = replace(seen, phase=Phase.RUNNING, is_heard=True)
            elif seen.draining and not seen.ticket and chance.random() < 0.3:
                self.workers[name] = replace(seen, ticket=seen.epoch)
            elif chance.random() < deaths:
                self.end(name)

    def serves(self) -> bool:
        """Whether some revision has a prefill and a decode worker that take work."""
        there = {
            (self.revisions[name], name.rpartition("-")[0])
            for name, seen in self.workers.items()
            if seen.phase is Phase.RUNNING and not seen.draining
        }
        return any({(its, "prefill"), (its, "decode")} <= there for its in (OLD, NEW))

    def look(self, chance: random.Random, survives: float = 1.0) -> None:
        """One round of a controller, which may die between saving and any act."""
        view = self.view()
        self.saved = rolled(next_desired(self.saved, self.rooms, view), self.rooms, view)
        for act in next_acts(self.saved, view):
            if chance.random() > survives:
                return
            self.carry_out(act)

    def begin(self, extra: int = 0, canary: float = 0.0) -> Decided:
        """Raises `RefusedError`."""
        asked = acts_pb2.StartRolloutRequest(
            model_dir=NEW, extra_workers=extra, canary_share=canary
        )
        decided = start(self.saved, self.rooms, self.view(), asked, self.fit)
        self.saved = decided.desired
        return decided

    def step(self, which: STEP.Step) -> Decided:
        """Raises `RefusedError`."""
        decided = step(self.saved, self.rooms, self.view(), STEP(step=which))
        self.saved = decided.desired
        return decided


def up(facts: Rolling) -> Rolling:
    """Everybody runs."""
    chance = random.Random(0)
    while not all(seen.is_heard for seen in facts.workers.values()) or not facts.workers:
        facts.look(chance)
        facts.happen(chance)
    return facts


def revisions(desired: Desired) -> str:
    """Like `prefill oN decode N.`: o of the former revision, N of the new one, . on its way."""
    found = []
    for pool in sorted({seat.pool for seat in desired.seats}, reverse=True):
        marks = ""
        for seat in desired.seats:
            if seat.pool == pool:
                is_there = desired.removal(seat.name) is None
                marks += ("N" if seat.model_dir == NEW else "o") if is_there else "."
        found.append(f"{pool} {marks}")
    return " ".join(found)


def cluster(prefill: int = 2, decode: int = 2, seats: int = 0) -> Rolling:
    rooms = inventory(prefill=prefill, decode=decode, a=seats or prefill + decode)
    return up(Rolling(rooms, Desired()))
