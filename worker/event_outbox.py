"""Row events for routers (everything about rows except tokens), in the order they happened."""

from __future__ import annotations

from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId


class EventOutbox:
    """Roles add events, the worker takes them. Unbounded: the worker empties it each step."""

    def __init__(self) -> None:
        self._events: list[worker_pb2.RowEvent] = []

    def row(
        self,
        attempt: AttemptId,
        kind: worker_pb2.RowEvent.Kind,
        role: worker_pb2.Role,
        *,
        reason: str = "",
        message: str = "",
        figures: worker_pb2.RowFigures | None = None,
    ) -> None:
        self.event(row_event(attempt, kind, role, reason=reason, message=message, figures=figures))

    def event(self, event: worker_pb2.RowEvent) -> None:
        self._events.append(event)

    def take(self) -> list[worker_pb2.RowEvent]:
        """Everything since the last call."""
        events, self._events = self._events, []
        return events


def row_event(
    attempt: AttemptId,
    kind: worker_pb2.RowEvent.Kind,
    role: worker_pb2.Role,
    *,
    reason: str = "",
    message: str = "",
    figures: worker_pb2.RowFigures | None = None,
) -> worker_pb2.RowEvent:
    return worker_pb2.RowEvent(
        key=attempt.key, kind=kind, role=role, reason=reason, message=message, figures=figures
    )
