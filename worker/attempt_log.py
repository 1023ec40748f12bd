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

from twolane.v1 import worker_pb2
from worker.attempt_id import AttemptId
from worker.news import Item

_Kind = worker_pb2.RowEvent

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


class AttemptLog:
    """Every token event of the attempt, and the latest row event of each of its roles."""

    __slots__ = (
        "_latest",
        "_live",
        "_tokens",
        "attempt",
        "deadline_s",
        "detached_s",
        "ended_s",
        "follows",
        "session",
    )

    def __init__(
        self,
        attempt: AttemptId,
        roles: Iterable[worker_pb2.Role],
        session: object,
        *,
        deadline_s: float | None,
    ) -> None:
        self.attempt = attempt
        self.deadline_s = deadline_s
        self.session: object | None = session  # who hears its news; None: nobody now
        self.detached_s = 0.0  # since when; means nothing while there is a session
        self.ended_s: float | None = None
        self.follows: tuple[AttemptId, int] | None = None  # whose row it has, sent to which epoch
        self._live = set(roles)
        # As bytes: there are some 100,000 of them on a worker, and the garbage collector need not
        # look at each.
        self._tokens: list[bytes] = []
        self._latest: dict[worker_pb2.Role, worker_pb2.RowEvent] = {}

    def record(self, item: Item, now: float) -> None:
        if isinstance(item, worker_pb2.TokenEvent):
            self._tokens.append(item.SerializeToString())
            return
        role = item.role
        self._latest[role] = item
        if item.kind == _Kind.KIND_HANDED_OVER:
            self._live.discard(role)
        elif item.kind in LAST_WORDS:
            self._live.clear()
        if not self._live and self.ended_s is None:
            self.ended_s = now

    def detach(self, now: float) -> None:
        self.session, self.detached_s = None, now

    def since(
        self, from_index: int
    ) -> tuple[Sequence[worker_pb2.TokenEvent], Sequence[worker_pb2.RowEvent]]:
        """Token events from that index on, in the order they were sent, and the latest news."""
        told = [worker_pb2.TokenEvent.FromString(raw) for raw in self._tokens]
        return [event for event in told if event.index >= from_index], list(self._latest.values())

    def is_forgettable(self, now: float, grace_s: float) -> bool:
        return self.ended_s is not None and now >= self.ended_s + grace_s

    def is_abandoned(self, now: float, grace_s: float) -> bool:
        """It runs, and for too long nobody has listened, or its deadline has passed."""
        if self.ended_s is not None:
            return False
        late = self.deadline_s is not None and now >= self.deadline_s
        return late or (self.session is None and now >= self.detached_s + grace_s)
