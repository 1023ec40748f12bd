"""The workers of the cluster: announces, sessions, silence, drains.

Members are kept by epoch. When the session of a new epoch opens, the old epoch of that worker_id is
GONE; the announce is not enough, as it may arrive late, from a process that has ended. While the
old one is heard, a new worker with its id is refused. An epoch that was replaced or proven gone
never comes back. This module reads no clock: the caller passes `now`.

Each change is reported once, when it happens: epochs in `changed`, members by `take_lost`, epochs
by `take_gone`. A member is checked for silence only when it may have been silent for long enough.
So nothing here iterates over all members, except after a first, a changed or a last announce.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from twolane.errors import InvalidRequestError, OverloadedError
from twolane.router.config import MembershipConfig
from twolane.router.lazy_heap import LazyHeap
from twolane.router.members.drain_wish import DrainWish
from twolane.router.members.member import Member, MemberState
from twolane.router.members.model import ModelFacts, can_pair, model_facts
from twolane.v1 import cluster_pb2, worker_pb2

log = logging.getLogger(__name__)

S = MemberState
MAX_RETIRED = 4096
PROOF_MEMORY_S = 600.0
LEAVES = "it leaves"  # why a worker is gone that has said so itself


class NameTakenError(Exception):
    """Another worker with that id is alive and keeps the id."""


class ForeignEpochError(Exception):
    """An agent has reported an incarnation that belongs to another host."""


class RetiredEpochError(Exception):
    """That incarnation was replaced or reported dead, and cannot come back."""


class Membership:
    """Knows which workers are alive, and which are lost. Holds no connection."""

    def __init__(self, config: MembershipConfig) -> None:
        self.changed: set[int] = set()  # epochs; the reader that caches members empties it
        self.on_move: Callable[[Member, str], None] = lambda member, why: None
        self.config = config
        self._members: dict[int, Member] = {}
        self._of_worker: dict[str, dict[int, None]] = {}  # epochs by worker_id, in order
        self._models: tuple[ModelFacts, ...] | None = None  # until facts change
        self._servable: set[str] | None = None  # until facts or a state change
        self._looks: LazyHeap[int] = LazyHeap()  # epochs by the time of their next check
        self._lost: list[Member] = []
        self._gone: list[int] = []
        # Replaced or dead epochs, with the host if its agent reported an epoch before it was
        # announced.
        self._retired: OrderedDict[int, str | None] = OrderedDict()
        # When each epoch was proven dead, oldest first. Workers that learn of it free the pages
        # that it may have been writing; some learn of it only with their next session.
        self.proofs: dict[int, float] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, epoch: int) -> Member | None:
        return self._members.get(epoch)

    def worker_id(self, epoch: int) -> str:
        """The worker's id, for logs and status; empty if the epoch is not known any more."""
        member = self._members.get(epoch)
        return member.worker_id if member is not None else ""

    def announce(self, announce: cluster_pb2.AnnounceRequest, now: float) -> Member | None:
        """Handle a worker's announce. Returns the member if the caller must open a session to it.

        Raises `NameTakenError` while another worker with its id is alive, `RetiredEpochError`,
        `InvalidRequestError` for an epoch of another worker, and `OverloadedError` if there are
        `most_members` already.
        """
        epoch, worker_id = announce.worker.epoch, announce.worker.worker_id
        member = self._members.get(epoch)
        if member is not None and member.worker_id != worker_id:
            text = f"epoch {epoch:016x} belongs to {member.worker_id}, not to {worker_id}"
            raise InvalidRequestError(text, field="worker.worker_id")
        if announce.leaving:
            if member is not None:
                self._end(member, now, LEAVES, logging.INFO)
            return None
        self._check_claim(announce)
        if epoch in self._retired:  # guard: retired epoch
            raise RetiredEpochError(
                f"epoch {epoch:016x} of {worker_id} was replaced, or reported dead: restart it"
            )
        if member is not None and member.state is not S.GONE:
            self._announced(member, announce)
            return None
        self._check_name(worker_id, epoch, now)
        if len(self._members) >= self.config.most_members:  # guard: members
            text = f"there are {len(self._members)} workers, at most {self.config.most_members}"
            raise OverloadedError(text, retry_after_s=self.config.forget_after_s)
        former = self._of_worker.setdefault(worker_id, {})
        member = Member(announce, now)
        if former and self._members[next(reversed(former))].is_drained:
            member.wish = DrainWish(enabled=True)  # a restart does not end a drain
        former[epoch] = None
        self._members[epoch] = member
        self._note_facts(epoch)
        self._looks.put(epoch, now + self.config.suspicion_s)
        log.info(
            "worker %s announces itself: %s, epoch %016x, model %s, at %s",
            worker_id,
            "+".join(member.role_names),
            epoch,
            announce.model,
            announce.worker.endpoint,
        )
        return member

    def _announced(self, member: Member, announce: cluster_pb2.AnnounceRequest) -> None:
        announce = member.with_its_roles(announce)
        if member.announce != announce:
            member.announce = announce
            self._note_facts(member.epoch)

    def _check_name(self, worker_id: str, epoch: int, now: float) -> None:
        """Raise `NameTakenError` if another live worker keeps that id."""
        for other in [self._members[e] for e in self._of_worker.get(worker_id, ()) if e != epoch]:
            if other.keeps_its_name(now, self.config.suspicion_s):  # guard: live name
                raise NameTakenError(
                    f"worker {worker_id} is alive at {other.announce.worker.endpoint} (epoch "
                    f"{other.epoch:016x}) and keeps its name: choose another --worker-id"
                )

    def opened(self, epoch: int, now: float) -> None:
        """A session is open: the worker of that epoch has answered. Other epochs of its id are
        retired: they are former incarnations, or the worker was started twice. Only a session shows
        that, because announces may arrive late. Does nothing for a member that is gone, whose dial
        is about to be cancelled."""
        member = self._members[epoch]
        if member.state is S.GONE:  # guard: gone member
            return
        for other in self._of_worker[member.worker_id]:
            if other != epoch:
                self._retire(other)
                self._end(self._members[other], now, f"epoch {epoch:016x} has its name")
        member.is_open = True
        member.was_refused = False
        self.heard(epoch, None, now)

    def broken(self, epoch: int) -> None:
        """The session is over. The next dial shows whether the worker still runs."""
        member = self._members[epoch]
        member.is_open = False
        self._suspect(member, "its session broke")

    def refused(self, epoch: int) -> None:
        """A dial failed: there was no answer, or one of another epoch."""
        member = self._members[epoch]
        member.was_refused = True
        self._suspect(member, "nobody answers there")
        if member.state is S.SUSPECT:
            self._lost.append(member)

    def heard(self, epoch: int, load: worker_pb2.LoadReport | None, now: float) -> None:
        """A message has arrived in the session; `load` is its report, if it had one."""
        member = self._members[epoch]
        if member.state is S.GONE:
            return
        member.last_heard = now
        if load is not None and load != member.load:
            member.load = load
            self.changed.add(epoch)
            self._announced(member, member.announce)
            if member.wish is not None and member.wish.is_settled(load):
                member.wish = None
        if member.is_stuck:
            self._suspect(member, "its step does not end")
            self._lost.append(member)
            return
        wanted = S.DRAINING if member.drains else S.ALIVE
        if member.is_open and member.state is not wanted:
            self._advance(member, wanted, "its session is open")
            self._looks.put(epoch, now + self.config.suspicion_s)

    def named(self, worker_id: str) -> Member | None:
        """The worker's incarnation that is not gone; if there are two, the one with a session. None
        if there is no such worker."""
        ours = [self._members[epoch] for epoch in self._of_worker.get(worker_id, ())]
        here = [member for member in ours if member.state is not S.GONE]
        return max(here, key=lambda member: member.is_open, default=None)

    def drain(
        self, worker_id: str, *, undo: bool = False, hand_over: bool = False
    ) -> Member | None:
        """Give this worker no new work, or with `undo` give it work again. Returns as `named`."""
        for member in [self._members[epoch] for epoch in self._of_worker.get(worker_id, ())]:
            if member.state is not S.GONE:
                member.wish = DrainWish.make(
                    member.wish, member.load, undo=undo, hand_over=hand_over
                )
                if undo:
                    # until its next report confirms it
                    member.load.draining = False
                wanted = S.ALIVE if undo else S.DRAINING
                if member.state in (S.ALIVE, S.DRAINING) and member.state is not wanted:
                    self._advance(member, wanted, "an operator or its controller wants it")
        return self.named(worker_id)

    def forget_drain(self, worker_id: str, ended: int) -> None:
        """The drain of epoch `ended`, and of those that have ended, is not inherited by the next
        worker of that name."""
        for epoch in self._of_worker.get(worker_id, ()):
            if epoch == ended or self._members[epoch].state is S.GONE:
                self._members[epoch].wish = DrainWish(enabled=False)

    def report_gone(self, epoch: int, now: float, *, host: str | None = None) -> None:
        """Record the proof that no process of this epoch runs. With `host`, the report is from that
        host's agent. It holds for workers that announced that host, and for epochs that are not
        announced yet, until another host announces them. Raises `ForeignEpochError`."""
        its = self._members.get(epoch)
        if host is not None and its is not None and its.announce.host != host:  # guard: own host
            raise ForeignEpochError(
                f"epoch {epoch:016x} is of {its.worker_id} on {its.announce.host or 'no host'}, "
                f"and the agent of {host} reports it gone"
            )
        self._retire(epoch, host if its is None else None)
        self.proofs.pop(epoch, None)
        self.proofs[epoch] = now
        if len(self.proofs) > MAX_RETIRED:
            del self.proofs[next(iter(self.proofs))]
        member = self._members.get(epoch)
        if member is not None:
            self._end(member, now, "its process is gone")

    def tick(self, now: float) -> None:
        """Check the members that may have been silent for long enough."""
        while self.proofs and now - next(iter(self.proofs.values())) >= PROOF_MEMORY_S:
            del self.proofs[next(iter(self.proofs))]
        for epoch in self._looks.take_up_to(now):
            self._look(self._members[epoch], now)

    def take_lost(self) -> list[Member]:
        """The members for which `is_lost` has become true since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def take_gone(self) -> list[int]:
        """The epochs that have ended since the last call. One of them may have come back
        meanwhile."""
        gone, self._gone = self._gone, []
        return gone

    def is_lost(self, member: Member, now: float) -> bool:
        """Whether its requests must be resumed elsewhere: it is gone, was silent for too long, did
        not answer a dial, or has a late step. A session that broke a moment ago is not enough."""
        if member.state is S.SUSPECT:
            if member.was_refused or member.is_stuck:
                return True
            return now - member.last_heard > self.config.suspicion_s
        return member.state is S.GONE

    def servable_models(self) -> set[str]:
        """Models with an alive worker of each role, whose pages can go from one to the other."""
        if self._servable is None:
            kinds = {
                _Kind.of(member): member.announce for member in self if member.state is S.ALIVE
            }
            self._servable = {
                giver.model
                for kind, giver in kinds.items()
                if kind.prefills
                and any(
                    taker.decodes and can_pair(giver, announce) for taker, announce in kinds.items()
                )
            }
        return self._servable

    def models(self) -> tuple[ModelFacts, ...]:
        """Every model that has workers of both roles. Workers that are gone count only if the model
        has no others, as they may come back."""
        if self._models is None:
            found = {}
            everyone = [member.announce for member in self]
            present = [member.announce for member in self if member.state is not S.GONE]
            for announces in (everyone, present):
                for name in dict.fromkeys(announce.model for announce in announces):
                    if facts := model_facts(name, announces):
                        found[name] = facts
            self._models = tuple(found.values())
        return self._models

    def _look(self, member: Member, now: float) -> None:
        """Check one member for silence, and schedule its next check."""
        config = self.config
        member.forget_cancels(now)
        silent_s = now - member.last_heard
        if member.gone_at is not None:
            if now - member.gone_at > config.forget_after_s:
                self._forget(member)
                return
            due = member.gone_at + config.forget_after_s
        elif silent_s > config.gone_after_s:
            self._end(member, now, f"not heard for {silent_s:.1f} s")
            return
        elif silent_s > config.suspicion_s:
            self._suspect(member, f"not heard for {silent_s:.1f} s")
            if member.state is S.SUSPECT:
                self._lost.append(member)
            due = member.last_heard + config.gone_after_s
        else:
            due = member.last_heard + config.suspicion_s
        self._looks.put(member.epoch, due)

    def _suspect(self, member: Member, why: str) -> None:
        if member.state in (S.ALIVE, S.DRAINING):
            self._advance(member, S.SUSPECT, why, logging.WARNING)

    def _end(self, member: Member, now: float, why: str, level: int = logging.WARNING) -> None:
        if member.state is not S.GONE:
            self._advance(member, S.GONE, why, level)
            self._note_facts(member.epoch)
            member.gone_at = now
            member.cancels.clear()
            self._lost.append(member)
            self._gone.append(member.epoch)
            self._looks.put(member.epoch, now + self.config.forget_after_s)

    def _forget(self, member: Member) -> None:
        del self._members[member.epoch]
        epochs = self._of_worker[member.worker_id]
        del epochs[member.epoch]
        if not epochs:
            del self._of_worker[member.worker_id]
        self._note_facts(member.epoch)

    def _advance(
        self, member: Member, to: MemberState, why: str, level: int = logging.INFO
    ) -> None:
        """Change a member's state and log it. All changes are made here."""
        member.life.advance(to)
        name = to.name.lower()
        log.log(level, "worker %s (%016x) is %s: %s", member.worker_id, member.epoch, name, why)
        self.on_move(member, why)
        self._servable = None
        self.changed.add(member.epoch)

    def _note_facts(self, epoch: int) -> None:
        """An announce has changed, or which announces count."""
        self._models = self._servable = None
        self.changed.add(epoch)

    def _check_claim(self, announce: cluster_pb2.AnnounceRequest) -> None:
        """Drop an agent's report of an unknown epoch if another host now announces that epoch."""
        epoch = announce.worker.epoch
        claimed_by = self._retired.get(epoch)
        if claimed_by is not None and claimed_by != announce.host:
            log.error(
                "the agent of %s reported %s of %s gone, but the worker announces itself",
                claimed_by, announce.worker.worker_id, announce.host or "no host",
            )  # fmt: skip
            del self._retired[epoch]
            self.proofs.pop(epoch, None)

    def _retire(self, epoch: int, claimed_by: str | None = None) -> None:
        self._retired[epoch] = claimed_by
        while len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)


class _Kind(NamedTuple):
    """Members of one kind can be paired with the same members."""

    model: str
    fingerprint: str
    layout: str
    makes_dtypes: tuple[str, ...]
    prefills: bool
    decodes: bool

    @classmethod
    def of(cls, member: Member) -> _Kind:
        told = member.announce
        makes = tuple(told.makes_dtypes)
        roles = member.prefills, member.decodes
        return cls(told.model, told.fingerprint, told.layout, makes, *roles)
