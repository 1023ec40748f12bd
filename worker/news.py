"""What roles have to tell routers: token events and row events, in the order they happened."""

from __future__ import annotations

from engine.step import SampledToken
from twolane.v1 import sampling_pb2, worker_pb2
from worker.attempt_id import AttemptId
from worker.rows import Row

Item = worker_pb2.TokenEvent | worker_pb2.RowEvent


class News:
    """Roles write, the worker takes. Unbounded: the worker empties it each step."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def token(
        self,
        row: Row,
        sampled: SampledToken,
        role: worker_pb2.Role,
        finish: sampling_pb2.FinishReason,
    ) -> None:
        """`sampled` is the row's newest token."""
        event = worker_pb2.TokenEvent()
        event.CopyFrom(row.blank_token(role))
        event.index = row.next_index - 1
        event.token_id = sampled.token
        if finish:
            event.finish_reason = finish
        if sampled.logprob is not None:
            event.logprob = sampled.logprob
        for token_id, logprob in sampled.top:
            event.top_logprobs.add(token_id=token_id, logprob=logprob)
        self._items.append(event)

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
        self._items.append(event)

    def take(self) -> list[Item]:
        """Everything since the last call."""
        items, self._items = self._items, []
        return items


def row_event(
    attempt: AttemptId,
    kind: worker_pb2.RowEvent.Kind,
    role: worker_pb2.Role,
    *,
    reason: str = "",
    message: str = "",
    figures: worker_pb2.RowFigures | None = None,
) -> worker_pb2.RowEvent:
    """The message; `from` is a keyword in Python, so it has to be set by name."""
    event = worker_pb2.RowEvent(
        key=attempt.key, kind=kind, reason=reason, message=message, figures=figures
    )
    event.role = role
    return event
