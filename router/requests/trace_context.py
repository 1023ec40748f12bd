"""A request's place in a trace, in the form of the W3C's Trace Context.

caller's traceparent ──> CALLED_BY ──> Traces.traced ──> Job.trace ──> traceresponse, spans
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

PARENT, STATE = "traceparent", "tracestate"
RESPONSE = "traceresponse"  # the header in which answers name their own span


class TraceHeaders(NamedTuple):
    """The two headers as a caller sent them, unchecked; empty: it sent none."""

    parent: str = ""
    state: str = ""

    @classmethod
    def of(cls, metadata: Iterable[tuple[str, str | bytes]]) -> TraceHeaders:
        """Of a gRPC call's metadata."""
        found = {key: str(value) for key, value in metadata if key in (PARENT, STATE)}
        return cls(found.get(PARENT, ""), found.get(STATE, ""))


# The caller's headers. Each call has a task and so a context of its own. A door sets it for every
# call, because some calls share a connection's task.
NO_CALLER = TraceHeaders()
CALLED_BY: ContextVar[TraceHeaders] = ContextVar("CALLED_BY", default=NO_CALLER)


class TraceContext(NamedTuple):
    """The ids of a request's own span. `parent_id` is the caller's span, 0: it has none."""

    trace_id: int
    span_id: int
    parent_id: int
    is_sampled: bool
    state: str = ""

    @property
    def header(self) -> str:
        """The value of `traceparent` and `traceresponse`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"
