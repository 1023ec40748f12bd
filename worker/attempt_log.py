"""What one attempt has told its router so far, so that it can be told again.

             ASSIGN                       stream lost
    attached to a session  <--------->  detached  --- grace ---> cancelled
             ^                ATTACH        |
             `------------------------------'

    live (a role has it) --- its last words ---> ended --- grace ---> forgotten

Both are derived: attached from `session`, ended from `ended_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from engine.step import SampledToken
from twolane.rpc.columns import ColumnWriter
from twolane.v1 import sampling_pb2, worker_pb2
from worker.attempt_id import AttemptId
from worker.labels import Claim
from worker.owner import Owner
from worker.told import Told

_Kind = worker_pb2.RowEvent
ROLES = (worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE)  # prefill tells a row's first token

# After these the worker knows the attempt no more. (After HANDED_OVER, the prefill role: a decode
# role of the same worker goes on.)
LAST_WORDS = frozenset(
    {
        _Kind.KIND_RETARGETED,
        _Kind.KIND_GONE,
        _Kind.KIND_DEAD,
        _Kind.KIND_PREEMPTED,
        _Kind.KIND_FAILED,
        _Kind.KIND_FINISHED,
        _Kind.KIND_REFUSED,
    }
)
FREES_PAGES = LAST_WORDS | {_Kind.KIND_HANDED_OVER}


class Listener(Protocol):
    """Who hears the news of an attempt; compared by identity."""

    tokens: dict[worker_pb2.Role, ColumnWriter]  # that wait to be sent


class AttemptLog:
    """Every token of the attempt, and the latest row event of each of its roles."""

    __slots__ = (
        "_latest",
        "_live",
        "_told",
        "attempt",
        "claim",
        "deadline_s",
        "detached_s",
        "ended_s",
        "follows",
        "owner",
        "row",
        "sample",
        "session",
    )

    def __init__(
        self,
        attempt: AttemptId,
        roles: Iterable[worker_pb2.Role],
        session: Listener | None,
        *,
        owner: Owner,
        claim: Claim,
        row: int,
        sample: int = 0,
        deadline_s: float | None = None,
    ) -> None:
        self.attempt = attempt
        self.owner = owner
        self.claim = claim
        self.row = row  # under which tokens are told
        self.sample = sample
        self.deadline_s = deadline_s
        self.session = session  # who hears its news; None: nobody now
        self.detached_s = 0.0  # since when; means nothing while there is a session
        self.ended_s: float | None = None
        self.follows: tuple[AttemptId, int] | None = None  # whose row it has, sent to which epoch
        self._live = set(roles)
        self._told: dict[worker_pb2.Role, Told] = {}
        self._latest: dict[worker_pb2.Role, worker_pb2.RowEvent] = {}

    @classmethod
    def of(
        cls,
        assign: worker_pb2.Assign,
        session: Listener | None = None,
        *,
        owner: Owner = Owner("", 0),  # noqa: B008 - a constant
        deadline_s: float | None = None,
    ) -> AttemptLog:
        """Of an attempt that begins."""
        return cls(
            AttemptId.of(assign.key),
            assign.roles,
            session,
            owner=owner,
            claim=Claim.of(assign),
            row=assign.row,
            sample=assign.sample,
            deadline_s=deadline_s,
        )

    def token(
        self,
        role: worker_pb2.Role,
        index: int,
        sampled: SampledToken,
        finish: sampling_pb2.FinishReason,
    ) -> None:
        """Tell the role's next token, which is at `index` of the answer. Called for every token."""
        told = self._told.get(role)
        if told is None:
            told = self._told[role] = Told()
            told.first_index = index
        told.token_ids.append(sampled.token)
        session = self.session
        writer = None if session is None else session.tokens[role]
        if writer is not None:
            if self.sample:
                writer.add(self.row, index, (sampled.token,), sample=self.sample)
            else:
                writer.rows.append(self.row)
                writer.first_indexes.append(index)
                writer.token_ids.append(sampled.token)
        if sampled.logprob is not None:
            logprobs = told.logprobs[len(told.token_ids) - 1] = (sampled.logprob, sampled.top)
            if writer is not None:
                writer.logprobs(1, logprobs)
        if finish:
            told.finish_reason = finish
            if writer is not None:
                writer.end(finish)

    def record(self, event: worker_pb2.RowEvent, now: float) -> None:
        role = event.role
        self._latest[role] = event
        if event.kind == _Kind.KIND_HANDED_OVER:
            self._live.discard(role)
        elif event.kind in LAST_WORDS:
            self._live.clear()
        if not self._live and self.ended_s is None:
            self.ended_s = now

    def detach(self, now: float) -> None:
        self.session, self.detached_s = None, now

    def since(
        self, from_index: int
    ) -> tuple[Sequence[worker_pb2.TokenColumns], Sequence[worker_pb2.RowEvent]]:
        """Tokens from that index on, in the order they were told, and the latest news."""
        columns = []
        for role in ROLES:
            writer = ColumnWriter(role)
            if role in self._told:
                self._told[role].since(from_index, writer, self.row, self.sample)
            if len(writer):
                columns.append(writer.take())
        return columns, list(self._latest.values())

    def is_forgettable(self, now: float, grace_s: float) -> bool:
        return self.ended_s is not None and now >= self.ended_s + grace_s

    def is_abandoned(self, now: float, grace_s: float) -> bool:
        """It runs, and for too long nobody has listened, or its deadline has passed."""
        if self.ended_s is not None:
            return False
        late = self.deadline_s is not None and now >= self.deadline_s
        return late or (self.session is None and now >= self.detached_s + grace_s)
