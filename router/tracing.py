"""Traces of requests for OpenTelemetry, made when a request is over: a token costs nothing.

    request                                    the router's answer, from arrival to end
      queued                                   its children are those of `twolane requests trace`
      prefill wait, prefill                    (`twolane.router.requests.trace`), with the times
      transfer                                 of the router and the workers, as the ledger has them
      decode wait, decode

A trace that no caller has begun has the submission id as its id, so that each router that continues
an answer adds to the same trace.

Only a router that exports traces imports this module: the library is an extra.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Sampler
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from twolane.router.requests.record import RequestRecord
from twolane.router.requests.request import Job
from twolane.router.requests.trace_context import CALLED_BY, PARENT, STATE, TraceContext
from twolane.router.span_encoding import REQUEST

_NO_CALLER = Context()
_HEADERS = TraceContextTextMapPropagator()
_HEX = frozenset("0123456789abcdef")
_ODD = 0x9E3779B97F4A7C15  # its multiples are far apart


class RequestTraces:
    """See `Traces`. Calls `export` with each request that is over and sampled."""

    is_on = True

    def __init__(self, sampler: Sampler, export: Callable[[RequestRecord], None]) -> None:
        self._sampler = sampler
        self._takes_all = sampler in (ALWAYS_ON, DEFAULT_ON)  # of those that no caller has begun
        self._export = export

    def traced(self, job: Job) -> Job:
        said, state = CALLED_BY.get(), ""
        parent, caller = _NO_CALLER, trace.INVALID_SPAN_CONTEXT
        if said.parent:
            parent = _HEADERS.extract({PARENT: said.parent, STATE: said.state}, _NO_CALLER)
            caller = trace.get_current_span(parent).get_span_context()
        submission = _trace_id(job.submission_id)
        span_id = _span_id(submission, job.fence)
        if caller.is_valid:
            trace_id, parent_id, state = caller.trace_id, caller.span_id, said.state
        else:
            trace_id = submission
            # A router that takes an answer over continues the trace of its first one.
            parent_id = _span_id(submission, 0) if job.fence else 0
        takes_it = self._takes_all and not caller.is_valid
        is_sampled = takes_it or self._is_sampled(parent, trace_id)
        return replace(job, trace=TraceContext(trace_id, span_id, parent_id, is_sampled, state))

    def _is_sampled(self, parent: Context, trace_id: int) -> bool:
        decided = self._sampler.should_sample(parent, trace_id, REQUEST, SpanKind.SERVER)
        return bool(decided.decision.is_sampled())

    def over(self, record: RequestRecord) -> None:
        if record.trace is not None and record.trace.is_sampled:
            self._export(record)


def _trace_id(submission_id: str) -> int:
    """The submission id as a number; one that a client has drawn in another form is hashed."""
    if len(submission_id) == 32 and _HEX.issuperset(submission_id):
        return int(submission_id, 16) or 1
    return int.from_bytes(hashlib.sha256(submission_id.encode()).digest()[:16]) or 1


def _span_id(submission: int, fence: int) -> int:
    """The id of a request's own span at its router number `fence`; the same at every router, and
    another one for each fence. `submission` is its `_trace_id`."""
    return (submission + fence * _ODD) % (1 << 64) or 1
