"""Who is in the cluster: announces, sessions, silence, drains.

Members are kept by epoch. A new epoch of the same worker_id ends the old one for dispatch when its
session opens: an announce may come late, and be of a process that is gone. While the old one is
heard, a newcomer of its name is refused. An epoch that was
replaced, or proven gone, never comes back. No clock here: `now` is given.

What follows from a change is told once, when it happens: epochs that `changed`, members that
`take_lost`, epochs that `take_gone`. Silence is looked for when it may have lasted long enough. So
nothing here walks all members, but for what follows from a first, a changed or a last announce.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from twolane.errors import InvalidRequestError, OverloadedError
from twolane.router.config import MembershipConfig
from twolane.router.lazy_heap import LazyHeap
from twolane.router.members.member import Member, MemberState
from twolane.router.members.model import ModelFacts, feeds, model_facts
from twolane.v1 import cluster_pb2, worker_pb2

log = logging.getLogger(__name__)

S = MemberState
MAX_RETIRED = 4096
PROOF_MEMORY_S = 600.0


class NameTakenError(Exception):
    """Another worker of that id is alive, and keeps the name."""


class ForeignEpochError(Exception):
    """An agent has reported an incarnation of another host."""


class RetiredEpochError(Exception):
    """That incarnation was replaced or reported dead, and cannot come back."""


class Membership:
    """Answers who is there and who is lost. Holds no connection."""

    def __init__(self, config: MembershipConfig) -> None:
        self.changed: set[int] = set()  # emptied by who keeps something of members
        self._config = config
        self._members: dict[int, Member] = {}
        self._of_worker: dict[str, dict[int, None]] = {}  # epochs by worker_id, in order
        self._models: tuple[ModelFacts, ...] | None = None  # until facts change
        self._servable: set[str] | None = None  # until facts or a state change
        self._looks: LazyHeap[int] = LazyHeap()  # epochs by when silence may have lasted
        self._lost: list[Member] = []
        self._gone: list[int] = []
        # with the host whose agent said so of an epoch that nobody had announced
        self._retired: OrderedDict[int, str | None] = OrderedDict()
        # epochs of which no process runs, and since when that is known, oldest first: what they may
        # have been writing to is freed at workers that hear of it, if only with their next session
        self.proofs: dict[int, float] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, epoch: int) -> Member | None:
        return self._members.get(epoch)

    def worker_id(self, epoch: int) -> str:
        """For people; empty where nobody knows it any more."""
        member = self._members.get(epoch)
        return member.worker_id if member is not None else ""

    def announce(self, announce: cluster_pb2.AnnounceRequest, now: float) -> Member | None:
        """A worker says that it exists. Returns the member if a session must be dialled for it.

        Raises `NameTakenError` while another of its id is alive, `RetiredEpochError`,
        `InvalidRequestError` for an epoch of another worker, and `OverloadedError` beyond
        `most_members`.
        """
        epoch, worker_id = announce.worker.epoch, announce.worker.worker_id
        member = self._members.get(epoch)
        if member is not None and member.worker_id != worker_id:
            text = f"epoch {epoch:016x} is that of {member.worker_id}, not of {worker_id}"
            raise InvalidRequestError(text, field="worker.worker_id")
        if announce.leaving:
            if member is not None:
                self._end(member, now, "it leaves", logging.INFO)
            return None
        self._check_claim(announce)
        if epoch in self._retired:  # guard: retired epoch
            raise RetiredEpochError(
                f"epoch {epoch:016x} of {worker_id} was replaced, or reported dead: start it again"
            )
        if member is not None and member.state is not S.GONE:
            if member.announce != announce:
                member.announce = announce
                self._note_facts(epoch)
            return None
        self._check_name(worker_id, epoch, now)
        if len(self._members) >= self._config.most_members:  # guard: members
            text = f"there are {len(self._members)} workers, at most {self._config.most_members}"
            raise OverloadedError(text, retry_after_s=self._config.forget_after_s)
        former = self._of_worker.setdefault(worker_id, {})
        member = Member(announce, now)
        if former:  # a worker that is drained and starts again is drained
            member.drain_wanted = self._members[next(reversed(former))].drain_wanted
        former[epoch] = None
        self._members[epoch] = member
        self._note_facts(epoch)
        self._looks.put(epoch, now + self._config.suspicion_s)
        log.info(
            "worker %s announces itself: %s, epoch %016x, model %s, at %s",
            worker_id,
            "+".join(member.role_names),
            epoch,
            announce.model,
            announce.worker.endpoint,
        )
        return member

    def _check_name(self, worker_id: str, epoch: int, now: float) -> None:
        """Raises `NameTakenError` if a newcomer of that id must not have it."""
        for other in [self._members[e] for e in self._of_worker.get(worker_id, ()) if e != epoch]:
            if other.keeps_its_name(now, self._config.suspicion_s):  # guard: live name
                raise NameTakenError(
                    f"worker {worker_id} is alive at {other.announce.worker.endpoint} (epoch "
                    f"{other.epoch:016x}) and keeps its name: choose another --worker-id"
                )

    def opened(self, epoch: int, now: float) -> None:
        """A session is open: the worker of that epoch answered. Others of its name are former ones,
        or it was started twice: an announce alone does not tell, as one may come late. Of one that
        is gone it means nothing: its dial is about to be called off."""
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
        """The session is over. Whether the worker is, the next dial will tell."""
        member = self._members[epoch]
        member.is_open = False
        self._suspect(member, "its session broke")

    def refused(self, epoch: int) -> None:
        """A dial failed: nobody there, or another epoch."""
        member = self._members[epoch]
        member.was_refused = True
        self._suspect(member, "nobody answers there")
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
            self._suspect(member, "its step does not end")
            self._lost.append(member)
            return
        wanted = S.DRAINING if member.is_to_drain or member.load.draining else S.ALIVE
        if member.is_open and member.state is not wanted:
            self._advance(member, wanted, "its session is open")
            self._looks.put(epoch, now + self._config.suspicion_s)

    def named(self, worker_id: str) -> Member | None:
        """The incarnation that is not gone, the one with a session if there are two. None if there
        is no such worker."""
        ours = [self._members[epoch] for epoch in self._of_worker.get(worker_id, ())]
        here = [member for member in ours if member.state is not S.GONE]
        return max(here, key=lambda member: member.is_open, default=None)

    def worker(self, worker_id: str) -> Member:
        """As `named`; raises `InvalidRequestError` if there is none."""
        member = self.named(worker_id)
        if member is None:
            raise InvalidRequestError(f"there is no worker {worker_id!r}", field="worker_id")
        return member

    def drain(
        self, worker_id: str, *, undo: bool = False, hand_over: bool = False
    ) -> Member | None:
        """No new work for this worker, or again. Returns as `named`."""
        wish = worker_pb2.Drain(enabled=not undo, hand_over=hand_over and not undo)
        for member in [self._members[epoch] for epoch in self._of_worker.get(worker_id, ())]:
            if member.state is not S.GONE:
                member.drain_wanted = wish
                if undo:
                    # until its next report says the same
                    member.load.draining = False
                wanted = S.ALIVE if undo else S.DRAINING
                if member.state in (S.ALIVE, S.DRAINING) and member.state is not wanted:
                    self._advance(member, wanted, "an operator wants it")
        return self.named(worker_id)

    def report_gone(self, epoch: int, now: float, *, host: str | None = None) -> None:
        """The proof that no process of this epoch runs. With a `host` it is the word of its agent,
        which counts for what that host has announced, or for what nobody has announced yet: then
        until another host does. Raises `ForeignEpochError`."""
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
        """Look at those that may have been silent for long enough."""
        while self.proofs and now - next(iter(self.proofs.values())) >= PROOF_MEMORY_S:
            del self.proofs[next(iter(self.proofs))]
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
            self._looks.put(member.epoch, now + self._config.forget_after_s)

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
        """Every move of a member's life is made here, and logged."""
        member.life.advance(to)
        name = to.name.lower()
        log.log(level, "worker %s (%016x) is %s: %s", member.worker_id, member.epoch, name, why)
        self._servable = None
        self.changed.add(member.epoch)

    def _note_facts(self, epoch: int) -> None:
        """What an announce says has changed, or whose announces count."""
        self._models = self._servable = None
        self.changed.add(epoch)

    def _check_claim(self, announce: cluster_pb2.AnnounceRequest) -> None:
        """An agent's word on an epoch that nobody knew does not hold for another host's worker."""
        epoch = announce.worker.epoch
        claimed_by = self._retired.get(epoch)
        if claimed_by is not None and claimed_by != announce.host:
            log.error(
                "the agent of %s reported %s of %s gone, which announces itself",
                claimed_by, announce.worker.worker_id, announce.host or "no host",
            )  # fmt: skip
            del self._retired[epoch]
            self.proofs.pop(epoch, None)

    def _retire(self, epoch: int, claimed_by: str | None = None) -> None:
        self._retired[epoch] = claimed_by
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
