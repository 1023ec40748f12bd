"""Which attempts are on this worker: the owner and listener of each, and tombstones.

Does no I/O; sessions are compared by identity. Every attempt has one owner, and at most one
listener, a session of that owner; the attempt id is enough to route a command or an event.
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
    """Logs by attempt, the labels they hold, and tombstones."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._logs: dict[tuple[str, int], AttemptLog] = {}  # by AttemptId, as a plain tuple
        self._live: dict[tuple[str, int], AttemptLog] = {}  # those that a role still has
        self._ended: deque[AttemptLog] = deque()  # the others, in order of their end
        self._of_submission: dict[str, list[AttemptLog]] = {}  # all, in order of arrival
        self._labels = Labels()
        # highest fences of submissions that were taken over and of which nothing is left here
        self._fences = Tombstones[str, int](config.fence_s)
        # by owner too: no router can bury what another one is about to assign
        self._tombstones = Tombstones[tuple[AttemptId, Owner], str](config.tombstone_s)

    # -- commands ---------------------------------------------------------------------------

    def find(self, attempt: AttemptId) -> AttemptLog | None:
        return self._logs.get(attempt)

    def admit(self, log: AttemptLog) -> Refusal | None:
        """Open the log of an attempt that is not here yet. Returns the reason for refusing it, or
        None."""
        assert log.attempt not in self._logs
        if (log.attempt, log.owner) in self._tombstones:
            return Refusal.TOMBSTONE
        if self._labels.is_held_by_other(log.claim):  # guard: label
            return Refusal.REQUEST_IN_USE
        self._open(log)
        return None

    def can_follow(self, attempt: AttemptId, following: AttemptId) -> bool:
        """Whether the row of `attempt` is here and may continue as `following`, a later attempt
        that is neither here nor buried."""
        log = self._logs.get(attempt)
        if log is None or following in self._logs:
            return False
        return (following, log.owner) not in self._tombstones and following.number > attempt.number

    def cancel(self, attempt: AttemptId, owner: Owner, now: float) -> bool:
        """Refuse this attempt from now on. False, and no change, if another router owns it."""
        log = self._logs.get(attempt)
        if log is not None:
            if log.owner != owner:  # guard: owner
                return False
            self._labels.release(log.claim, attempt)
            log.is_cancelled = True
        self._tombstones.bury((attempt, owner), "cancelled", now)
        return True

    def has_followed(self, attempt: AttemptId, following: AttemptId, target_epoch: int) -> bool:
        """Whether this RETARGET is a duplicate: exactly that was done already."""
        successor = self._logs.get(following)
        return successor is not None and successor.follows == (attempt, target_epoch)

    def successor(
        self,
        attempt: AttemptId,
        following: AttemptId,
        decode: worker_pb2.WorkerAddress,
        roles: Iterable[worker_pb2.Role],
        *,
        row: int,
    ) -> AttemptLog:
        """A log for the row of `attempt` under another attempt, sent to the same session. `follow`
        opens it.

        The row is to go to worker `decode`; if that is this worker, it has both roles.
        """
        return self._logs[attempt].successor(following, roles, decode, row=row)

    def follow(self, successor: AttemptLog) -> None:
        """The row has continued as another attempt."""
        self._open(successor)

    # -- takeover ---------------------------------------------------------------------------

    def of_submission(self, submission_id: str) -> list[AttemptLog]:
        """Every attempt of it that is here, ended ones too, in order of arrival."""
        return list(self._of_submission.get(submission_id, ()))

    def past_fence(self, submission_id: str) -> int:
        """The highest fence that it had here, as far as it is remembered: a router that was away
        for longer than logs are kept must not begin it again."""
        return self._fences.find(submission_id) or 0

    def of_label(self, tenant: str, request_id: str) -> list[AttemptLog]:
        """The same, of the submission that runs under that label, or else was the last to end
        under it."""
        label = tenant, request_id
        attempt = self._labels.holder(*label) or self._last_to_end_under(label)
        return [] if attempt is None else self.of_submission(attempt.submission_id)

    def _last_to_end_under(self, label: tuple[str, str]) -> AttemptId | None:
        logs = (log for log in reversed(self._ended) if not log.is_cancelled)
        return next((log.attempt for log in logs if log.claim[:2] == label), None)

    # -- sessions ---------------------------------------------------------------------------

    def attach(
        self, attempt: AttemptId, from_index: int, session: Listener, *, row: int = 0
    ) -> worker_pb2.SessionResponse:
        """What the new listener, a session of the attempt's owner, has missed; KIND_GONE if the
        attempt is not here. Its tokens are sent under `row` from now on; 0: as before."""
        log = self._logs.get(attempt)
        if log is None:
            gone = worker_pb2.RowEvent(key=attempt.key, kind=worker_pb2.RowEvent.KIND_GONE)
            return worker_pb2.SessionResponse(rows=[gone])
        log.session, log.told_at = session, session.next_number
        log.row = row or log.row
        tokens, rows = log.since(from_index)
        return worker_pb2.SessionResponse(tokens=tokens, rows=rows)

    def detach(self, session: Listener, now: float) -> None:
        """The stream ended: its attempts run on without a listener."""
        for log in self._logs.values():
            if log.session is session:
                log.detach(now)

    def dispatch(
        self, events: Iterable[worker_pb2.RowEvent], now: float
    ) -> dict[Listener, list[worker_pb2.RowEvent]]:
        """Log the events; returns those to send to each session, in order."""
        heard: dict[Listener, list[worker_pb2.RowEvent]] = {}
        for event in events:
            log = self._logs.get((event.key.submission_id, event.key.attempt))
            assert log is not None, f"a role reports a row that was never assigned: {event}"
            log.record(event, now)
            if log.ended_s is not None:
                self._bury(log)
            if log.session is not None:
                heard.setdefault(log.session, []).append(event)
                log.told_at = log.session.next_number
        return heard

    # -- time -------------------------------------------------------------------------------

    def expire(self, now: float) -> list[AttemptLog]:
        """Forget ended attempts after their grace. Returns the attempts to cancel now; they are
        returned again until they are cancelled."""
        self._tombstones.tick(now)
        self._fences.tick(now)
        grace_s = self._config.grace_s
        while self._ended and self._ended[0].is_forgettable(now, grace_s):
            self._forget(self._ended.popleft(), now)
        return [log for log in self._live.values() if log.is_abandoned(now, grace_s)]

    @property
    def n_live(self) -> int:
        """Attempts that a role still has."""
        return len(self._live)

    @property
    def live(self) -> Iterable[AttemptLog]:
        return self._live.values()

    def unheard(self, now: float) -> list[AttemptLog]:
        """Ended attempts, in their grace, whose last news no router has confirmed. An owner that
        has cancelled one waits for no news."""
        return [
            log
            for log in self._ended
            if not log.is_forgettable(now, self._config.grace_s) and not log.is_heard
        ]

    def __contains__(self, attempt: AttemptId) -> bool:
        return attempt in self._logs

    # -- inside -----------------------------------------------------------------------------

    def _open(self, log: AttemptLog) -> None:
        self._logs[log.attempt] = self._live[log.attempt] = log
        self._of_submission.setdefault(log.attempt.submission_id, []).append(log)
        self._labels.hold(log.claim, log.attempt)

    def _forget(self, log: AttemptLog, now: float) -> None:
        if log.fence:
            fence = max(log.fence, self.past_fence(log.attempt.submission_id))
            self._fences.bury(log.attempt.submission_id, fence, now)
        del self._logs[log.attempt]
        others = self._of_submission[log.attempt.submission_id]
        others.remove(log)
        if not others:
            del self._of_submission[log.attempt.submission_id]

    def _bury(self, log: AttemptLog) -> None:
        """A second terminal event of the same attempt changes nothing."""
        if self._live.pop(log.attempt, None) is not None:
            self._labels.release(log.claim, log.attempt)
            self._ended.append(log)
