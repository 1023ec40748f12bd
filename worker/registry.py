"""Which attempts are on this worker, who listens to each, and what cannot come back.

Pure: sessions are opaque tokens, compared by identity. Every attempt has at most one listener; a
command or an event finds its way by attempt alone.
"""

from __future__ import annotations

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
        self._logs: dict[AttemptId, AttemptLog] = {}
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
        self._logs[attempt] = AttemptLog(attempt, roles, session, deadline_s=deadline_s)
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

    def follow(self, attempt: AttemptId, following: AttemptId, target_epoch: int) -> None:
        """The row goes to that worker under another attempt, heard by the same session."""
        log = self._logs[attempt]
        roles = [worker_pb2.ROLE_PREFILL]
        heir = AttemptLog(following, roles, log.session, deadline_s=log.deadline_s)
        heir.detached_s = log.detached_s
        heir.follows = (attempt, target_epoch)
        self._logs[following] = heir

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
            log = self._logs.get(AttemptId.of(item.key))
            if log is None:  # a role speaks of a row that nobody assigned
                raise AssertionError(f"news of an unknown attempt: {item}")
            log.record(item, now)
            if log.session is not None:
                heard.setdefault(log.session, []).append(item)
        return heard

    # -- time -------------------------------------------------------------------------------

    def expire(self, now: float) -> list[AttemptId]:
        """Forget what is over; returns the attempts that are to be cancelled now."""
        self._tombstones.tick(now)
        grace_s = self._config.grace_s
        for log in [log for log in self._logs.values() if log.is_forgettable(now, grace_s)]:
            del self._logs[log.attempt]
        return [a for a, log in self._logs.items() if log.is_abandoned(now, grace_s)]

    @property
    def n_live(self) -> int:
        """Attempts that a role still has."""
        return sum(1 for log in self._logs.values() if log.ended_s is None)

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._logs
