"""Which attempts are on this worker, whose they are, who listens to each, what cannot come back.

Pure: sessions are compared by identity. Every attempt has one owner, and at most one listener, of
that owner; a command or an event finds its way by attempt alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twolane.refusals import Refusal
from twolane.tombstones import Tombstones
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.attempts.attempt_log import AttemptLog, Listener
from twolane.worker.attempts.labels import Labels
from twolane.worker.attempts.owner import Owner
from twolane.worker.config import SessionConfig


class Registry:
    """Logs by attempt, the labels that they hold, and tombstones."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._logs: dict[tuple[str, int], AttemptLog] = {}  # by AttemptId, as a plain tuple
        self._live: dict[tuple[str, int], AttemptLog] = {}  # those of them that a role still has
        self._ended: deque[AttemptLog] = deque()  # the others, as they ended
        self._labels = Labels()
        # by owner too: nobody can bury what another is about to assign
        self._tombstones = Tombstones[tuple[AttemptId, Owner], str](config.tombstone_s)

    # -- commands ---------------------------------------------------------------------------

    def find(self, attempt: AttemptId) -> AttemptLog | None:
        return self._logs.get(attempt)

    def admit(self, log: AttemptLog) -> Refusal | None:
        """Open the log of an attempt that is not here. Returns why not, or None."""
        assert log.attempt not in self._logs
        if (log.attempt, log.owner) in self._tombstones:
            return Refusal.TOMBSTONE
        if self._labels.is_anothers(log.claim):  # guard: label
            return Refusal.REQUEST_IN_USE
        self._open(log)
        return None

    def can_follow(self, attempt: AttemptId, following: AttemptId) -> bool:
        """Whether the row of `attempt` may go on as `following`: here, and neither late nor old."""
        log = self._logs.get(attempt)
        if log is None or following in self._logs:
            return False
        return (following, log.owner) not in self._tombstones and following.number > attempt.number

    def cancel(self, attempt: AttemptId, owner: Owner, now: float) -> bool:
        """Nothing of this attempt is let in any more. False, and no change: it is not theirs."""
        log = self._logs.get(attempt)
        if log is not None:
            if log.owner != owner:  # guard: owner
                return False
            self._labels.let_go(log.claim, attempt)
            log.is_cancelled = True
        self._tombstones.bury((attempt, owner), "cancelled", now)
        return True

    def has_followed(self, attempt: AttemptId, following: AttemptId, target_epoch: int) -> bool:
        """Whether exactly that was done: the command is a repeat."""
        heir = self._logs.get(following)
        return heir is not None and heir.follows == (attempt, target_epoch)

    def heir(
        self,
        attempt: AttemptId,
        following: AttemptId,
        target_epoch: int,
        roles: Iterable[worker_pb2.Role],
        *,
        row: int,
    ) -> AttemptLog:
        """A log for the row of `attempt`, which is to go to that worker (this one: both roles are
        here then) under another attempt, heard by the same session. `follow` opens it."""
        log = self._logs[attempt]
        heir = AttemptLog(
            following,
            roles,
            log.session,
            owner=log.owner,
            claim=log.claim,
            row=row,
            sample=log.sample,
            deadline_s=log.deadline_s,
        )
        heir.detached_s = log.detached_s
        heir.follows = (attempt, target_epoch)
        return heir

    def follow(self, heir: AttemptLog) -> None:
        """The row has gone on as another attempt."""
        self._open(heir)

    # -- sessions ---------------------------------------------------------------------------

    def attach(
        self, attempt: AttemptId, from_index: int, session: Listener
    ) -> worker_pb2.SessionResponse:
        """What the new listener, of the attempt's owner, has missed; KIND_GONE if the attempt is
        not here."""
        log = self._logs.get(attempt)
        if log is None:
            gone = worker_pb2.RowEvent(key=attempt.key, kind=worker_pb2.RowEvent.KIND_GONE)
            return worker_pb2.SessionResponse(rows=[gone])
        log.session = session
        tokens, rows = log.since(from_index)
        return worker_pb2.SessionResponse(tokens=tokens, rows=rows)

    def detach(self, session: Listener, now: float) -> None:
        """The stream is over: its attempts go on unheard."""
        for log in self._logs.values():
            if log.session is session:
                log.detach(now)

    def dispatch(
        self, events: Iterable[worker_pb2.RowEvent], now: float
    ) -> dict[Listener, list[worker_pb2.RowEvent]]:
        """Log the news; returns what each session is to hear, in order."""
        heard: dict[Listener, list[worker_pb2.RowEvent]] = {}
        for event in events:
            log = self._logs.get((event.key.submission_id, event.key.attempt))
            assert log is not None, f"a role speaks of a row that nobody assigned: {event}"
            log.record(event, now)
            if log.ended_s is not None:
                self._bury(log)
            if log.session is not None:
                heard.setdefault(log.session, []).append(event)
        return heard

    # -- time -------------------------------------------------------------------------------

    def expire(self, now: float) -> list[AttemptLog]:
        """Forget what is over; returns the attempts that are to be cancelled now, until
        they are."""
        self._tombstones.tick(now)
        grace_s = self._config.grace_s
        while self._ended and self._ended[0].is_forgettable(now, grace_s):
            del self._logs[self._ended.popleft().attempt]
        return [log for log in self._live.values() if log.is_abandoned(now, grace_s)]

    @property
    def n_live(self) -> int:
        """Attempts that a role still has."""
        return len(self._live)

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._logs

    # -- inside -----------------------------------------------------------------------------

    def _open(self, log: AttemptLog) -> None:
        self._logs[log.attempt] = self._live[log.attempt] = log
        self._labels.hold(log.claim, log.attempt)

    def _bury(self, log: AttemptLog) -> None:
        """A role that speaks once more of what has ended changes nothing."""
        if self._live.pop(log.attempt, None) is not None:
            self._labels.let_go(log.claim, log.attempt)
            self._ended.append(log)
