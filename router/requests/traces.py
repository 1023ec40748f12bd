"""Where the traces of requests go: nowhere, unless a collector was named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twolane.router.requests.record import RequestRecord
from twolane.router.requests.request import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """When spans are sent."""

    delay_s: float = 5.0  # at most so late
    most_waiting: int = 4096  # requests; more have no trace
    batch_spans: int = 2048  # about as many as this are sent without delay, in one message
    flush_s: float = 2.0  # how long the last ones may take at a stop


class Traces(Protocol):
    """Where the traces of requests go."""

    is_on: bool

    def traced(self, job: Job) -> Job:
        """The job with its `TraceContext`, for the caller in `CALLED_BY`."""
        ...

    def over(self, record: RequestRecord) -> None:
        """A request is over: export its spans. Does not block."""
        ...


class NoTraces:
    """Makes no traces."""

    is_on = False

    def traced(self, job: Job) -> Job:
        return job

    def over(self, record: RequestRecord) -> None: ...


NO_TRACES = NoTraces()
