"""The caller's span in OpenTelemetry, as the headers that W3C's Trace Context gives it."""

from __future__ import annotations

import sys

TraceMetadata = tuple[tuple[str, str], ...]


def trace_headers() -> TraceMetadata:
    """`traceparent` and `tracestate` of the span in which this is called; empty if there is none,
    or if the program does not use OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    return tuple(headers.items())
