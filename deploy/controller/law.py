"""The law: which workers to start, flip, drain and delete now.

    targets   what is needed, as far as the budget goes
    up        1 undrain   2 flip a worker that the other pool can spare   3 start, all at once
    down      only below the largest need of the last minutes, one worker at a time, never while
              something speaks against it; drained first, deleted on its ticket. Before it knows
              those minutes, a controller drains only what is idle or beyond the limits
    guard     a start that takes too long is cancelled; after several failures in a row starts wait

Everything here is a pure function. The budget holds because every start is checked against the
GPUs of all workers, in whatever state, including the starts of the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from twolane.deploy.controller.actions import (
    Action,
    Cancel,
    Delete,
    Drain,
    Flip,
    Start,
    Undrain,
    Why,
)
from twolane.deploy.controller.budget import share_budget
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import BOTH, Need, Observation, Role, State, Worker


@dataclass(frozen=True, slots=True)
class Verdict:
    """`actions`, and what else there is to explain. `vetoes`: what speaks against a drain now.
    `starts_in_s`: until starts are made again after failures, 0 if they are made."""

    actions: tuple[Action, ...]
    targets: Mapping[Role, int]
    have: Mapping[Role, int]
    vetoes: tuple[str, ...]
    starts_in_s: float


def decide(now: float, observation: Observation, limits: Limits) -> list[Action]:
    """The actions to take now, in order."""
    return [*judge(now, observation, limits).actions]


def judge(now: float, observation: Observation, limits: Limits) -> Verdict:
    """`decide`, with an explanation."""
    return _Decision(now, observation, limits).verdict()


def vetoes(now: float, seen: Observation, limits: Limits) -> tuple[str, ...]:
    """What speaks against a drain now, whether or not the needs of the last minutes are known. It
    does not speak against a flip to a pool that is short."""
    found = []
    if seen.attainment is not None and seen.attainment < limits.attainment:
        found.append(
            f"{seen.attainment:.1%} of the last 5 minutes' requests held the SLO, below "
            f"{limits.attainment:.1%}"
        )
    if seen.failed_s is not None and now - seen.failed_s < limits.veto_s:
        found.append(f"a start failed {now - seen.failed_s:.0f} s ago")
    if seen.by_hand_s is not None and now - seen.by_hand_s < limits.veto_s:
        found.append(f"an operator changed a size {now - seen.by_hand_s:.0f} s ago")
    if not seen.records_events:
        found.append("events cannot be recorded")
    return tuple(found)


def starts_in_s(now: float, seen: Observation, limits: Limits) -> float:
    """How long to wait, after failed starts, before the next one; 0: not at all."""
    if seen.failed_s is None or seen.failed_starts < limits.failures:
        return 0.0
    doubled = limits.backoff_s * 2.0 ** min(seen.failed_starts - limits.failures, 32)
    return max(0.0, seen.failed_s + min(doubled, limits.most_backoff_s) - now)


def patience_s(seen: Observation, limits: Limits) -> float:
    """How long a start may take. It doubles with each failure in a row, up to a bound: perhaps
    starts take longer here than they ever did."""
    usual_s = limits.guard * seen.start_s
    doubled_s = usual_s * 2.0 ** min(seen.failed_starts, 32)
    return max(usual_s, min(doubled_s, limits.most_patience_s))


def is_idle(seen: Observation, limits: Limits) -> bool:
    """Whether no request came for so long that pools go to zero."""
    return limits.goes_to_zero and not seen.waiting and seen.idle_s >= limits.idle_s


class _Decision:
    """The state of one decision: the budget left, and the workers that already have an action."""

    def __init__(self, now: float, seen: Observation, limits: Limits) -> None:
        self._now = now
        self._seen = seen
        self._limits = limits
        self._is_idle = is_idle(seen, limits)
        self._overdue = {worker.worker_id for worker in seen.workers if self._is_overdue(worker)}
        self._splits = self._should_split()
        self._needs = self._adjusted_needs()
        self._targets = share_budget(self._needs, limits, seen.pins)
        self._have = {role: sum(self._counts(w, role) for w in seen.workers) for role in Role}
        self._ready = {role: sum(self._serves(w, role) for w in seen.workers) for role in Role}
        self._free_gpus = limits.budget_gpus - seen.held_gpus
        self._touched: set[str] = set()
        self._had = dict(self._have)

    def verdict(self) -> Verdict:
        against = vetoes(self._now, self._seen, self._limits)
        wait_s = starts_in_s(self._now, self._seen, self._limits)
        cancels = self._cancels()
        ups = self._first_worker() if wait_s <= 0 else []
        if not ups:
            for role in sorted(
                Role, key=lambda role: self._have[role] / max(1, self._targets[role])
            ):
                ups += self._undrains(role)
                ups += self._flips(role)
                ups += self._starts(role) if wait_s <= 0 else []
        ups += self._split()
        is_free = not against or (self._is_idle and self._is_only_late(against))
        unknown = self._unknown()
        downs = self._down() if is_free and not unknown and not ups else []
        if not ups and not downs and self._is_only_late(against):
            downs = self._down(beyond_limits=True)
            downs = downs or (self._down(rebalance=True) if not unknown else [])
        actions = (*cancels, *ups, *downs, *self._deletes())
        return Verdict(actions, self._targets, self._had, (*against, *unknown), wait_s)

    # What is needed

    def _unknown(self) -> tuple[str, ...]:
        """Why it is not known what was needed lately, as by a controller that has taken over."""
        began_s = self._seen.began_s
        if began_s is None or self._is_idle or self._now - began_s >= self._limits.kept_s:
            return ()
        return (f"needs are known of the last {self._now - began_s:.0f} s only",)

    def _adjusted_needs(self) -> dict[Role, Need]:
        """Nothing when idle. Else at least one worker of each role: a pool alone serves no
        request."""
        needs = dict(self._seen.needs)
        if self._is_idle:
            return {role: replace(need, workers=0, soon=0, kept=0) for role, need in needs.items()}
        serving = any(worker.serves_or_will for worker in self._seen.workers)
        some = serving or self._seen.waiting or any(need.workers for need in needs.values())
        if not some:
            return needs
        return {
            role: replace(need, workers=max(1, need.workers), kept=max(1, need.kept))
            for role, need in needs.items()
        }

    def _should_split(self) -> bool:
        """Whether a worker with both roles no longer suffices."""
        needs = self._seen.needs.values()
        return sum(need.load for need in needs) > 1 or any(need.workers > 1 for need in needs)

    def _counts(self, worker: Worker, role: Role) -> bool:
        """It serves that role, or will. A worker with both that is to be split will decode, where
        its rows are."""
        if not worker.serves_or_will or worker.worker_id in self._overdue:
            return False
        if worker.roles == BOTH and self._splits:
            return role is Role.DECODE
        return role in worker.roles

    def _serves(self, worker: Worker, role: Role) -> bool:
        return worker.state is State.READY and self._counts(worker, role)

    # Up

    def _first_worker(self) -> list[Action]:
        """From zero, start one worker with both roles."""
        sizes = {pool.gpus for pool in self._limits.pools.values()}
        if any(self._have.values()) or not all(self._targets.values()) or len(sizes) > 1:
            return []
        if self._splits or not self._limits.goes_to_zero:
            return []
        (gpus,) = sizes
        if self._free_gpus < gpus:
            return []
        self._free_gpus -= gpus
        return [Start(BOTH, gpus, self._why(Role.DECODE, "no worker runs: one with both roles"))]

    def _undrains(self, role: Role) -> list[Action]:
        """Draining workers, the latest first: it has the most rows left."""
        draining = [
            worker
            for worker in self._seen.workers
            if worker.state is State.DRAINING and worker.roles == {role} and not worker.is_held
        ]
        found: list[Action] = []
        for worker in sorted(draining, key=lambda worker: -worker.since_s)[: self._short(role)]:
            found.append(Undrain(worker.worker_id, self._why(role)))
            self._touch(worker, role)
        return found

    def _flips(self, role: Role) -> list[Action]:
        """Workers that the other pool can spare, those with the fewest rows first."""
        if not self._limits.may_flip or role in self._seen.pins or role.other in self._seen.pins:
            return []
        found: list[Action] = []
        donors = [
            worker
            for worker in self._seen.workers
            if worker.state is State.READY and worker.roles == {role.other} and not worker.is_held
        ]
        for worker in sorted(donors, key=lambda worker: (worker.rows, worker.worker_id)):
            if not self._short(role) or not self._can_spare(role.other, role):
                break
            self._have[role.other] -= 1
            self._ready[role.other] -= 1
            detail = f"{role.other} has a worker to spare"
            found.append(Flip(worker.worker_id, frozenset({role}), self._why(role, detail)))
            self._touch(worker, role)
        return found

    def _can_spare(self, giver: Role, taker: Role) -> bool:
        """Without one worker the giver still has what it needed lately, as far as that is known.
        Or it has what it needs until a flip could bring one back, and is still no worse off than
        the taker then: the two would not change places at once."""
        if self._seen.began_s == self._now:  # one look shows no rates: prefill seems to be idle
            return False
        left = self._have[giver] - 1
        least = max(1, self._limits.pools[giver].minimum)
        if left < least or self._ready[giver] - 1 < least:
            return False
        if self._settles(giver) and self._ready[taker]:
            return False
        need, target = self._needs[giver], self._targets[giver]
        if left >= need.kept:
            return True
        is_urgent = self._needs[taker].soon > self._have[taker]
        after = self._have[taker] + (0 if is_urgent else 1)
        is_fair = after * need.load <= left * self._needs[taker].load
        return is_fair and left >= min(need.soon, target)

    def _settles(self, role: Role) -> bool:
        """Whether a worker has come by a flip so lately that its effect is not seen yet."""
        flipped_s = self._seen.flipped_s.get(role)
        return flipped_s is not None and self._now - flipped_s < self._limits.settle_s

    def _starts(self, role: Role) -> list[Action]:
        """Start all missing workers that fit the budget."""
        gpus = self._limits.pools[role].gpus
        found: list[Action] = []
        while self._short(role) and self._free_gpus >= gpus:
            found.append(Start(frozenset({role}), gpus, self._why(role)))
            self._free_gpus -= gpus
            self._have[role] += 1
        return found

    def _split(self) -> list[Action]:
        """Make a worker with both roles a decode worker once another one prefills."""
        if not self._splits:
            return []
        found: list[Action] = []
        for worker in self._seen.workers:
            is_whole = worker.state is State.READY and worker.roles == BOTH and not worker.is_held
            if is_whole and self._ready[Role.PREFILL]:
                why = self._why(Role.DECODE, "another worker prefills now")
                found.append(Flip(worker.worker_id, frozenset({Role.DECODE}), why))
                self._touched.add(worker.worker_id)
        return found

    # Down

    def _is_only_late(self, against: tuple[str, ...]) -> bool:
        """Whether late requests are the only reason not to shrink a pool."""
        late = self._seen.attainment is not None and self._seen.attainment < self._limits.attainment
        return len(against) == late

    def _down(self, *, beyond_limits: bool = False, rebalance: bool = False) -> list[Action]:
        """At most one worker, of the pool with the most to spare. `beyond_limits`: only what the
        limits no longer allow, needed or not. `rebalance`: only to let the other pool grow, where
        the budget is used up and workers cannot flip: then late requests are a reason to shrink
        one."""
        last = self._seen.last_down_s
        if last is not None and not self._is_idle and self._now - last < self._limits.calm_s:
            return []
        for role in sorted(Role, key=lambda role: self._least(role) - self._ready[role]):
            least = self._allowed(role) if beyond_limits else self._least(role)
            if rebalance:
                least = max(self._targets[role], self._needs[role].soon, self._fewest(role))
                if not self._lacks_gpus(role.other):
                    continue
            spare = min(self._ready[role], self._have[role]) - least
            if spare <= 0 or role in self._seen.pins:
                continue
            if (worker := self._candidate(role)) is not None:
                self._touched.add(worker.worker_id)
                has = f"{role} has {self._had[role]}"
                detail = f"{has}, and needed at most {self._needs[role].kept} lately"
                if beyond_limits or self._needs[role].kept > least:
                    detail = f"{has}, and its limits allow {least}"
                if rebalance:
                    detail = f"{has} and can do with {least}, and {role.other} lacks GPUs"
                return [Drain(worker.worker_id, self._why(role, detail))]
        return []

    def _lacks_gpus(self, role: Role) -> bool:
        can_start = self._free_gpus >= self._limits.pools[role].gpus
        return bool(self._short(role)) and not can_start and not self._limits.may_flip

    def _least(self, role: Role) -> int:
        """The size to which a pool may shrink: its need, or what reduced limits allow."""
        kept = self._limits.pools[role].within(self._needs[role].kept)
        return max(min(kept, self._allowed(role)), self._fewest(role))

    def _allowed(self, role: Role) -> int:
        """The size that the limits allow, whatever is needed."""
        most = self._limits.pools[role].maximum
        is_over_budget = self._seen.held_gpus > self._limits.budget_gpus
        allowed = min(most, self._targets[role]) if is_over_budget else most
        return max(allowed, self._fewest(role))

    def _fewest(self, role: Role) -> int:
        """One, as long as the other pool keeps workers: alone they serve no request."""
        return min(1, self._targets[role.other])

    def _candidate(self, role: Role) -> Worker | None:
        """The worker to remove: one whose node can leave then, on the emptiest node, with the
        fewest rows, the youngest."""
        on_node: dict[str, int] = {}
        for worker in self._seen.workers:
            on_node[worker.node] = on_node.get(worker.node, 0) + 1
        may_go = [
            worker
            for worker in self._seen.workers
            if worker.state is State.READY
            and not worker.is_held
            and role in worker.roles
            and (worker.roles == {role} or self._is_idle)
        ]
        return min(
            may_go,
            key=lambda w: (w.n_above, on_node[w.node], w.rows, -w.started_s, w.worker_id),
            default=None,
        )

    def _deletes(self) -> list[Action]:
        found: list[Action] = []
        for worker in self._seen.workers:
            is_ours = not worker.is_held and worker.worker_id not in self._touched
            if worker.has_ticket and is_ours:
                role = min(worker.roles)
                found.append(Delete(worker.worker_id, self._why(role, "drained, with a ticket")))
        return found

    # Guard

    def _is_overdue(self, worker: Worker) -> bool:
        took_s = self._now - worker.since_s
        return worker.state is State.STARTING and took_s > patience_s(self._seen, self._limits)

    def _cancels(self) -> list[Action]:
        return [
            Cancel(
                worker.worker_id,
                self._why(
                    min(worker.roles),
                    f"not ready after {self._now - worker.since_s:.0f} s, where "
                    f"{self._seen.start_s:.0f} s are usual",
                ),
            )
            for worker in self._seen.workers
            if worker.worker_id in self._overdue and not worker.is_held
        ]

    def _short(self, role: Role) -> int:
        return max(0, self._targets[role] - self._have[role])

    def _touch(self, worker: Worker, role: Role) -> None:
        self._touched.add(worker.worker_id)
        self._have[role] += 1

    def _why(self, role: Role, detail: str = "") -> Why:
        return Why(
            role=role,
            need=self._needs[role],
            have=self._had[role],
            target=self._targets[role],
            detail=detail,
        )
