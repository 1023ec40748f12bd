"""Which attempts are on this worker, who listens to each, and what cannot come back.

Pure: sessions are opaque tokens, compared by identity. Every attempt has at most one listener; a
command or an event finds its way by attempt alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twolane.tombstones import Tombstones
from twolane.v1 import worker_pb2
from worker.attempt_id import AttemptId
from worker.attempt_log import AttemptLog
from worker.config import SessionConfig
from worker.news import Item


class Registry:
    """Logs by attempt, and tombstones."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._logs: dict[tuple[str, int], AttemptLog] = {}  # by AttemptId, as a plain tuple
        self._live: dict[tuple[str, int], AttemptLog] = {}  # those of them that a role still has
        self._ended: deque[AttemptLog] = deque()  # the others, as they ended
        self._tombstones = Tombstones[AttemptId, str](config.tombstone_s)

    # -- commands ---------------------------------------------------------------------------

    def assign(
        self,
        attempt: AttemptId,
        roles: Iterable[worker_pb2.Role],
        session: object,
        *,
        deadline_s: float | None = None,
    ) -> str:
        """Open a log. Returns why not: the message is late or doubled, and is to be dropped."""
        if attempt in self._tombstones:
            return "tombstone"
        if attempt in self._logs:
            return "duplicate_assign"
        self._open(AttemptLog(attempt, roles, session, deadline_s=deadline_s))
        return ""

    def can_follow(self, attempt: AttemptId, following: AttemptId) -> bool:
        """Whether the row of `attempt` may go on as `following`: here, and neither late nor old."""
        is_new = following not in self._logs and following not in self._tombstones
        return attempt in self._logs and is_new and following.number > attempt.number

    def cancel(self, attempt: AttemptId, now: float) -> None:
        """Nothing of this attempt is let in any more."""
        self._tombstones.bury(attempt, "cancelled", now)

    def has_followed(self, attempt: AttemptId, following: AttemptId, target_epoch: int) -> bool:
        """Whether exactly that was done: the command is a repeat."""
        heir = self._logs.get(following)
        return heir is not None and heir.follows == (attempt, target_epoch)

    def follow(
        self,
        attempt: AttemptId,
        following: AttemptId,
        target_epoch: int,
        roles: Iterable[worker_pb2.Role] = (worker_pb2.ROLE_PREFILL,),
    ) -> None:
        """The row goes to that worker (which may be this one: both roles are here then) under
        another attempt, heard by the same session."""
        log = self._logs[attempt]
        heir = AttemptLog(following, roles, log.session, deadline_s=log.deadline_s)
        heir.detached_s = log.detached_s
        heir.follows = (attempt, target_epoch)
        self._open(heir)

    # -- sessions ---------------------------------------------------------------------------

    def attach(
        self, attempt: AttemptId, from_index: int, session: object
    ) -> worker_pb2.SessionResponse:
        """What the new listener has missed; KIND_GONE if the attempt is not here."""
        log = self._logs.get(attempt)
        if log is None:
            gone = worker_pb2.RowEvent(key=attempt.key, kind=worker_pb2.RowEvent.KIND_GONE)
            return worker_pb2.SessionResponse(rows=[gone])
        log.session = session
        tokens, rows = log.since(from_index)
        return worker_pb2.SessionResponse(tokens=tokens, rows=rows)

    def detach(self, session: object, now: float) -> None:
        """The stream is over: its attempts go on unheard."""
        for log in self._logs.values():
            if log.session is session:
                log.detach(now)

    def dispatch(self, items: Iterable[Item], now: float) -> dict[object, list[Item]]:
        """Log the news; returns what each session is to hear, in order."""
        heard: dict[object, list[Item]] = {}
        for item in items:
            key = item.key
            log = self._logs.get((key.submission_id, key.attempt))
            if log is None:  # a role speaks of a row that nobody assigned
                raise AssertionError(f"news of an unknown attempt: {item}")
            log.record(item, now)
            if log.ended_s is not None:
                self._bury(log)
            session = log.session
            if session is None:
                continue
            if session in heard:
                heard[session].append(item)
            else:
                heard[session] = [item]
        return heard

    # -- time -------------------------------------------------------------------------------

    def expire(self, now: float) -> list[AttemptId]:
        """Forget what is over; returns the attempts that are to be cancelled now."""
        self._tombstones.tick(now)
        grace_s = self._config.grace_s
        while self._ended and self._ended[0].is_forgettable(now, grace_s):
            del self._logs[self._ended.popleft().attempt]
        return [log.attempt for log in self._live.values() if log.is_abandoned(now, grace_s)]

    @property
    def n_live(self) -> int:
        """Attempts that a role still has."""
        return len(self._live)

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._logs

    # -- inside -----------------------------------------------------------------------------

    def _open(self, log: AttemptLog) -> None:
        self._logs[log.attempt] = self._live[log.attempt] = log

    def _bury(self, log: AttemptLog) -> None:
        """A role that speaks once more of what has ended changes nothing."""
        if self._live.pop(log.attempt, None) is not None:
            self._ended.append(log)
