"""Who is in the cluster: announces, sessions, silence, drains.

Members are kept by epoch. A new epoch of the same worker_id ends the old one for dispatch when its
session opens: an announce may come late, and be of a process that is gone. An epoch that was
replaced, or proven gone, never comes back. No clock here: `now` is given.

What follows from a change is told once, when it happens: epochs that `changed`, members that
`take_lost`, epochs that `take_gone`. Silence is looked for when it may have lasted long enough. So
nothing here walks all members, but for what follows from a first, a changed or a last announce.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from router.config import MembershipConfig
from router.lazy_heap import LazyHeap
from router.member import Member, MemberState
from router.model import ModelFacts, feeds, model_facts
from twolane.v1 import cluster_pb2, worker_pb2

S = MemberState
MAX_RETIRED = 4096


class Membership:
    """Answers who is there and who is lost. Holds no connection."""

    def __init__(self, config: MembershipConfig) -> None:
        self.changed: set[int] = set()  # emptied by who keeps something of members
        self._config = config
        self._members: dict[int, Member] = {}
        self._of_worker: dict[str, set[int]] = {}  # epochs by worker_id
        self._models: tuple[ModelFacts, ...] | None = None  # until facts change
        self._servable: set[str] | None = None  # until facts or a state change
        self._looks: LazyHeap[int] = LazyHeap()  # epochs by when silence may have lasted
        self._lost: list[Member] = []
        self._gone: list[int] = []
        self._retired: OrderedDict[int, None] = OrderedDict()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, epoch: int) -> Member | None:
        return self._members.get(epoch)

    def announce(self, announce: cluster_pb2.AnnounceRequest, now: float) -> Member | None:
        """A worker says that it exists. Returns the member if a session must be dialled for it."""
        epoch, worker_id = announce.worker.epoch, announce.worker.worker_id
        if epoch in self._retired:
            return None
        member = self._members.get(epoch)
        if announce.leaving:
            if member is not None:
                self._end(member, now)
            return None
        if member is not None and member.state is not S.GONE:
            if member.announce != announce:
                member.announce = announce
                self._note_facts(epoch)
            return None
        self._of_worker.setdefault(worker_id, set()).add(epoch)
        member = self._members[epoch] = Member(announce, now)
        self._note_facts(epoch)
        self._looks.put(epoch, now + self._config.suspicion_s)
        return member

    def opened(self, epoch: int, now: float) -> None:
        """A session is open: the worker of that epoch answered. Others of its name are former ones,
        or it was started twice: an announce alone does not tell, as one may come late."""
        member = self._members[epoch]
        for other in self._of_worker[member.worker_id] - {epoch}:
            self._retire(other)
            self._end(self._members[other], now)
        member.is_open = True
        member.was_refused = False
        self.heard(epoch, None, now)

    def broken(self, epoch: int) -> None:
        """The session is over. Whether the worker is, the next dial will tell."""
        member = self._members[epoch]
        member.is_open = False
        self._suspect(member)

    def refused(self, epoch: int) -> None:
        """A dial failed: nobody there, or another epoch."""
        member = self._members[epoch]
        member.was_refused = True
        self._suspect(member)
        if member.state is S.SUSPECT:
            self._lost.append(member)

    def heard(self, epoch: int, load: worker_pb2.LoadReport | None, now: float) -> None:
        """Any message of a session; `load` if it carried a report."""
        member = self._members[epoch]
        if member.state is S.GONE:
            return
        member.last_heard = now
        if load is not None and load != member.load:
            member.load = load
            self.changed.add(epoch)
        if member.is_stuck:
            self._suspect(member)
            self._lost.append(member)
            return
        wanted = S.DRAINING if member.drain_wanted or member.load.draining else S.ALIVE
        if member.is_open and member.state is not wanted:
            self._advance(member, wanted)
            self._looks.put(epoch, now + self._config.suspicion_s)

    def drain(self, worker_id: str, *, undo: bool) -> Member | None:
        """No new work for this worker, or again. None if there is no such worker."""
        for member in [self._members[epoch] for epoch in self._of_worker.get(worker_id, ())]:
            if member.state is not S.GONE:
                member.drain_wanted = not undo
                if undo:
                    # until its next report says the same
                    member.load.draining = False
                wanted = S.ALIVE if undo else S.DRAINING
                if member.state in (S.ALIVE, S.DRAINING) and member.state is not wanted:
                    self._advance(member, wanted)
                return member
        return None

    def report_gone(self, epoch: int, now: float) -> None:
        """The launcher's proof that no process of this epoch runs."""
        self._retire(epoch)
        member = self._members.get(epoch)
        if member is not None:
            self._end(member, now)

    def tick(self, now: float) -> None:
        """Look at those that may have been silent for long enough."""
        for epoch in self._looks.take_up_to(now):
            self._look(self._members[epoch], now)

    def take_lost(self) -> list[Member]:
        """Members of which `is_lost` has become true since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def take_gone(self) -> list[int]:
        """Epochs that have ended since the last call. One may have come back meanwhile."""
        gone, self._gone = self._gone, []
        return gone

    def is_lost(self, member: Member, now: float) -> bool:
        """Whether what runs there must be looked after elsewhere: silent for too long, nobody
        answers the dial, a step of it is late, or gone. A session that broke a moment ago is not
        enough."""
        if member.state is S.SUSPECT:
            if member.was_refused or member.is_stuck:
                return True
            return now - member.last_heard > self._config.suspicion_s
        return member.state is S.GONE

    def servable_models(self) -> set[str]:
        """Models that have an alive worker of each role, of which one can feed the other."""
        if self._servable is None:
            kinds = {
                _Kind.of(member): member.announce for member in self if member.state is S.ALIVE
            }
            self._servable = {
                giver.model
                for kind, giver in kinds.items()
                if kind.prefills
                and any(
                    taker.decodes and _can_feed(giver, announce)
                    for taker, announce in kinds.items()
                )
            }
        return self._servable

    def models(self) -> tuple[ModelFacts, ...]:
        """Every model that has workers of both roles. Workers that are gone count only for a model
        that has no others: it may come back."""
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
        """Once it was time to. Says when it will be again."""
        config = self._config
        member.forget_cancels(now)
        silent_s = now - member.last_heard
        if member.gone_at is not None:
            if now - member.gone_at > config.forget_after_s:
                self._forget(member)
                return
            due = member.gone_at + config.forget_after_s
        elif silent_s > config.gone_after_s:
            self._end(member, now)
            return
        elif silent_s > config.suspicion_s:
            self._suspect(member)
            if member.state is S.SUSPECT:
                self._lost.append(member)
            due = member.last_heard + config.gone_after_s
        else:
            due = member.last_heard + config.suspicion_s
        self._looks.put(member.epoch, due)

    def _suspect(self, member: Member) -> None:
        if member.state in (S.ALIVE, S.DRAINING):
            self._advance(member, S.SUSPECT)

    def _end(self, member: Member, now: float) -> None:
        if member.state is not S.GONE:
            self._advance(member, S.GONE)
            self._note_facts(member.epoch)
            member.gone_at = now
            member.cancels.clear()
            self._lost.append(member)
            self._gone.append(member.epoch)
            self._looks.put(member.epoch, now + self._config.forget_after_s)

    def _forget(self, member: Member) -> None:
        del self._members[member.epoch]
        epochs = self._of_worker[member.worker_id]
        epochs.discard(member.epoch)
        if not epochs:
            del self._of_worker[member.worker_id]
        self._note_facts(member.epoch)

    def _advance(self, member: Member, to: MemberState) -> None:
        """Every move of a member's life is made here."""
        member.life.advance(to)
        self._servable = None
        self.changed.add(member.epoch)

    def _note_facts(self, epoch: int) -> None:
        """What an announce says has changed, or whose announces count."""
        self._models = self._servable = None
        self.changed.add(epoch)

    def _retire(self, epoch: int) -> None:
        self._retired[epoch] = None
        while len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)


class _Kind(NamedTuple):
    """Members that can be paired with the same ones."""

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


def _can_feed(prefill: cluster_pb2.AnnounceRequest, decode: cluster_pb2.AnnounceRequest) -> bool:
    is_same = (prefill.model, prefill.fingerprint) == (decode.model, decode.fingerprint)
    return is_same and feeds(prefill, decode)
