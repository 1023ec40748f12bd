"""Who is in the cluster: announces, sessions, silence, drains.

Members are kept by epoch. A new epoch of the same worker_id ends the old one for dispatch; an epoch
that was replaced, or proven gone, never comes back. No clock here: `now` is given.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator

from router.config import MembershipConfig
from router.member import Member, MemberState
from router.model import ModelFacts, feeds, model_facts
from twolane.errors import OverloadedError
from twolane.v1 import cluster_pb2, worker_pb2

log = logging.getLogger(__name__)

S = MemberState
MAX_RETIRED = 4096


class NameTakenError(Exception):
    """Another worker of that id is alive, and keeps the name."""


class RetiredEpochError(Exception):
    """That incarnation was replaced or reported dead, and cannot come back."""


class Membership:
    """Answers who is there and who is lost. Holds no connection."""

    def __init__(self, config: MembershipConfig) -> None:
        self._config = config
        self._members: dict[int, Member] = {}
        self._models: tuple[ModelFacts, ...] | None = None  # until an announce or a loss
        self._retired: OrderedDict[int, None] = OrderedDict()

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, epoch: int) -> Member | None:
        return self._members.get(epoch)

    def announce(self, announce: cluster_pb2.AnnounceRequest, now: float) -> Member | None:
        """A worker says that it exists. Returns the member if a session must be dialled for it.

        Raises `NameTakenError` while another of its id is alive, `RetiredEpochError`, and
        `OverloadedError` beyond `most_members`.
        """
        self._models = None
        epoch, worker_id = announce.worker.epoch, announce.worker.worker_id
        member = self._members.get(epoch)
        if announce.leaving:
            if member is not None:
                self._end(member, now, "it leaves", logging.INFO)
            return None
        if epoch in self._retired:
            raise RetiredEpochError(
                f"epoch {epoch:016x} of {worker_id} was replaced, or reported dead: start it again"
            )
        if member is not None and member.state is not S.GONE:
            member.announce = announce
            return None
        former = [m for m in self if m.worker_id == worker_id and m.epoch != epoch]
        for other in former:
            if other.keeps_its_name(now, self._config.suspicion_s):
                raise NameTakenError(
                    f"worker {worker_id} is alive at {other.announce.worker.endpoint} (epoch "
                    f"{other.epoch:016x}) and keeps its name: choose another --worker-id"
                )
        if len(self._members) >= self._config.most_members:
            text = f"there are {len(self._members)} workers, at most {self._config.most_members}"
            raise OverloadedError(text, retry_after_s=self._config.forget_after_s)
        for other in former:
            self._retire(other.epoch)
            self._end(other, now, f"epoch {epoch:016x} has its name")
        member = self._members[epoch] = Member(announce, now)
        log.info(
            "worker %s announces itself: %s, epoch %016x, model %s, at %s",
            worker_id,
            "+".join(member.role_names),
            epoch,
            announce.model,
            announce.worker.endpoint,
        )
        return member

    def opened(self, epoch: int, now: float) -> None:
        """A session is open: the worker of that epoch answered."""
        member = self._members[epoch]
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

    def heard(self, epoch: int, load: worker_pb2.LoadReport | None, now: float) -> None:
        """Any message of a session; `load` if it carried a report."""
        member = self._members[epoch]
        if member.state is S.GONE:
            return
        member.last_heard = now
        if load is not None:
            member.load = load
        if member.is_stuck:
            self._suspect(member, "its step does not end")
            return
        wanted = S.DRAINING if member.drain_wanted or member.load.draining else S.ALIVE
        if member.is_open and member.state is not wanted:
            _move(member, wanted, "its session is open")

    def drain(self, worker_id: str, *, undo: bool) -> Member | None:
        """No new work for this worker, or again. None if there is no such worker."""
        for member in self:
            if member.worker_id == worker_id and member.state is not S.GONE:
                member.drain_wanted = not undo
                if undo:
                    # until its next report says the same
                    member.load.draining = False
                wanted = S.ALIVE if undo else S.DRAINING
                if member.state in (S.ALIVE, S.DRAINING) and member.state is not wanted:
                    _move(member, wanted, "an operator wants it")
                return member
        return None

    def report_gone(self, epoch: int, now: float) -> None:
        """The launcher's proof that no process of this epoch runs."""
        self._retire(epoch)
        member = self._members.get(epoch)
        if member is not None:
            self._end(member, now, "its process is gone")

    def tick(self, now: float) -> None:
        config = self._config
        for member in list(self):
            member.forget_cancels(now)
            silent_s = now - member.last_heard
            if member.gone_at is not None:
                if now - member.gone_at > config.forget_after_s:
                    del self._members[member.epoch]
                    self._models = None
            elif silent_s > config.gone_after_s:
                self._end(member, now, f"not heard for {silent_s:.1f} s")
            elif silent_s > config.suspicion_s:
                self._suspect(member, f"not heard for {silent_s:.1f} s")

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
        alive = [member for member in self if member.state is S.ALIVE]
        decode = [m for m in alive if m.decodes]
        return {
            m.announce.model
            for m in alive
            if m.prefills and any(_can_feed(m.announce, other.announce) for other in decode)
        }

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

    def _suspect(self, member: Member, why: str) -> None:
        if member.state in (S.ALIVE, S.DRAINING):
            _move(member, S.SUSPECT, why, logging.WARNING)

    def _end(self, member: Member, now: float, why: str, level: int = logging.WARNING) -> None:
        if member.state is not S.GONE:
            self._models = None
            _move(member, S.GONE, why, level)
            member.gone_at = now
            member.cancels.clear()

    def _retire(self, epoch: int) -> None:
        self._retired[epoch] = None
        while len(self._retired) > MAX_RETIRED:
            self._retired.popitem(last=False)


def _move(member: Member, to: MemberState, why: str, level: int = logging.INFO) -> None:
    """The log has every change of state: joins, losses, drains."""
    member.life.advance(to)
    name = to.name.lower()
    log.log(level, "worker %s (%016x) is %s: %s", member.worker_id, member.epoch, name, why)


def _can_feed(prefill: cluster_pb2.AnnounceRequest, decode: cluster_pb2.AnnounceRequest) -> bool:
    is_same = (prefill.model, prefill.fingerprint) == (decode.model, decode.fingerprint)
    return is_same and feeds(prefill, decode)
