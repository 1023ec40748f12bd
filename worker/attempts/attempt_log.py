"""What was reported about one attempt so far, so that it can be sent again.

             ASSIGN                       stream lost
    attached to a session  <--------->  detached  --- grace ---> cancelled
             ^                ATTACH        |
             `------------------------------'

    live (a role has it) --- terminal event ---> ended --- grace ---> forgotten

Both are derived: attached from `session`, ended from `ended_s`. A router that adopts the attempt
becomes its owner; until it attaches, there is no listener.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

from twolane.attempt_number import fence_of
from twolane.engine.step import SampledToken
from twolane.rpc.columns import GOES_ON, ColumnWriter, Logprobs
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.labels import Claim
from twolane.worker.attempts.owner import Owner

_Kind = worker_pb2.RowEvent
ROLES = (worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE)  # prefill reports a row's first token

# After one of these the attempt has ended on this worker. (After HANDED_OVER it has ended for the
# prefill role only: a decode role of the same worker goes on.)
TERMINAL_KINDS = frozenset(
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
FREES_PAGES = TERMINAL_KINDS | {_Kind.KIND_HANDED_OVER}


class Listener(Protocol):
    """Receives the events of an attempt; compared by identity."""

    tokens: dict[worker_pb2.Role, ColumnWriter]  # waiting to be sent
    next_number: int  # of the next message with tokens or rows
    confirmed: int  # the number of the last one that its router has processed

    def send(self, response: worker_pb2.SessionResponse, now: float) -> None: ...


class AttemptLog:
    """All tokens of the attempt, and the latest row event of each of its roles."""

    __slots__ = (
        "_finish_reason",
        "_first_index",
        "_latest",
        "_live",
        "_logprobs",
        "_n_prompt",
        "_token_ids",
        "assign",
        "attempt",
        "claim",
        "deadline_s",
        "decode",
        "detached_s",
        "ended_s",
        "fence",
        "follows",
        "is_cancelled",
        "owner",
        "row",
        "sample",
        "session",
        "told_at",
    )

    def __init__(
        self,
        attempt: AttemptId,
        roles: Iterable[worker_pb2.Role],
        session: Listener | None,
        *,
        owner: Owner,
        assign: worker_pb2.Assign,
        row: int,
        deadline_s: float | None = None,
    ) -> None:
        self.attempt = attempt
        self.owner = owner
        self.fence = fence_of(attempt.number)  # that the owner holds it under; never falls
        self.assign = assign  # as it began, under whatever number and for whatever decode worker
        self.decode = assign.decode
        self.claim = Claim.of(assign)
        self.row = row  # the number under which its tokens are sent
        self.sample = assign.sample
        self.deadline_s = deadline_s
        self.session = session  # receives its events; None: detached
        self.told_at = 0  # the number of the message with its latest row event, in that session
        self.detached_s = 0.0  # since when; unused while there is a session
        self.ended_s: float | None = None
        self.follows: tuple[AttemptId, int] | None = None  # predecessor, target epoch
        self.is_cancelled = False  # a role may still have it until the running step ends
        self._live = set(roles)
        self._token_ids: Sequence[int] = ()  # prompt (n_prompt of them) and answer
        self._n_prompt = 0
        self._first_index: dict[worker_pb2.Role, int] = {}  # of each role's first reported token
        self._logprobs: dict[int, Logprobs] = {}  # by index, if requested
        self._finish_reason = GOES_ON  # of the newest token
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
        """The log of an attempt that begins."""
        return cls(
            AttemptId.of(assign.key),
            assign.roles,
            session,
            owner=owner,
            assign=assign,
            row=assign.row,
            deadline_s=deadline_s,
        )

    def successor(
        self,
        attempt: AttemptId,
        roles: Iterable[worker_pb2.Role],
        decode: worker_pb2.WorkerAddress,
        *,
        row: int,
    ) -> AttemptLog:
        """The log of this row as another attempt, sent to another decode worker. What was told
        before is in it too, once the row has told it its tokens."""
        log = AttemptLog(
            attempt,
            roles,
            self.session,
            owner=self.owner,
            assign=self.assign,
            row=row,
            deadline_s=self.deadline_s,
        )
        log.fence = max(self.fence, log.fence)
        log.decode = decode
        log.detached_s = self.detached_s
        log.follows = self.attempt, decode.epoch
        log._first_index = dict(self._first_index)
        log._logprobs = dict(self._logprobs)
        return log

    def hear(self, token_ids: list[int], n_prompt: int) -> None:
        """Report this row's tokens; each is appended to `token_ids` before it is reported. The log
        reads the list to send tokens again, and takes its own copy once the attempt has ended."""
        self._token_ids, self._n_prompt = token_ids, n_prompt

    def first_token(
        self,
        role: worker_pb2.Role,
        index: int,
        sampled: SampledToken,
        finish: sampling_pb2.FinishReason,
    ) -> None:
        """Report the first token of a role; the prefill role reports no other."""
        self._first_index[role] = index
        self.token(role, index, sampled, finish)

    def token(
        self,
        role: worker_pb2.Role,
        index: int,
        sampled: SampledToken,
        finish: sampling_pb2.FinishReason,
    ) -> None:
        """Report the row's newest token, at `index` of the answer.

        Called for every token of every row: what is touched here is all that a step fetches from
        memory for a row.
        """
        logprobs = None
        if sampled.logprob is not None:
            logprobs = self._logprobs[index] = (sampled.logprob, sampled.top)
        if finish:
            self._finish_reason = finish
        session = self.session
        if session is None:
            return
        writer = session.tokens[role]
        if self.sample:
            writer.add(self.row, index, (sampled.token,), sample=self.sample)
        else:
            writer.rows.append(self.row)
            writer.first_indexes.append(index)
            writer.token_ids.append(sampled.token)
        if logprobs is not None:
            writer.logprobs(1, logprobs)
        if finish:
            writer.end(finish)

    def record(self, event: worker_pb2.RowEvent, now: float) -> None:
        role = event.role
        self._latest[role] = event
        if event.kind == _Kind.KIND_HANDED_OVER:
            self._live.discard(role)
        elif event.kind in TERMINAL_KINDS:
            self._live.clear()
        if not self._live and self.ended_s is None:
            self.ended_s = now
            # the row is freed and its tokens are kept: four bytes each, and no object that the
            # garbage collector visits
            self._token_ids, self._n_prompt = array("i", self._token_ids[self._n_prompt :]), 0

    def detach(self, now: float) -> None:
        self.session, self.detached_s = None, now

    def hand_to(self, owner: Owner, fence: int, now: float) -> None:
        """Another router, or another incarnation of one, has adopted it: it has no listener until
        that router attaches."""
        assert fence >= self.fence
        self.fence = fence
        if owner != self.owner:
            self.owner = owner
            self.detach(now)

    def describe(self) -> worker_pb2.AdoptedAttempt:
        """All that is known of it, for a router that knows nothing."""
        tokens, events = self.since(0)
        return worker_pb2.AdoptedAttempt(
            key=self.attempt.key,
            assign=self.assign,
            decode=self.decode,
            tokens=tokens,
            events=events,
            has_ended=self.ended_s is not None,
            is_cancelled=self.is_cancelled,
        )

    def since(
        self, from_index: int
    ) -> tuple[Sequence[worker_pb2.TokenColumns], Sequence[worker_pb2.RowEvent]]:
        """Tokens from that index on, in the order they were reported, and the latest events."""
        n_told = len(self._token_ids) - self._n_prompt
        columns = []
        for role, first in sorted(self._first_index.items()):
            end = first + 1 if role == worker_pb2.ROLE_PREFILL else n_told
            begin = max(first, from_index)
            if begin >= end:
                continue
            writer = ColumnWriter(role)
            ids = self._token_ids[self._n_prompt + begin : self._n_prompt + end]
            writer.add(self.row, begin, ids, sample=self.sample)
            for index in range(begin, end) if self._logprobs else ():
                if index in self._logprobs:
                    writer.logprobs(end - index, self._logprobs[index])
            if end == n_told and self._finish_reason:
                writer.end(self._finish_reason)
            columns.append(writer.take())
        return columns, list(self._latest.values())

    @property
    def is_heard(self) -> bool:
        """Whether its router has confirmed the latest row event, or has cancelled it."""
        if self.is_cancelled:
            return True
        return self.session is not None and self.session.confirmed >= self.told_at

    def is_forgettable(self, now: float, grace_s: float) -> bool:
        return self.ended_s is not None and now >= self.ended_s + grace_s

    def is_abandoned(self, now: float, grace_s: float) -> bool:
        """Whether it runs uncancelled, but past its deadline or detached for longer than the
        grace."""
        if self.ended_s is not None or self.is_cancelled:
            return False
        late = self.deadline_s is not None and now >= self.deadline_s
        return late or (self.session is None and now >= self.detached_s + grace_s)
