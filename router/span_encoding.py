"""Requests that are over, as a message of OTLP: the one that the library makes of the same spans.

The library makes an object of each span, event and attribute, and then a message of it. Here a
request's spans are added to the message at once, and attributes that occur again and again are
encoded once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceState

from twolane.attempt_number import try_of
from twolane.router.requests.journal import RETRY, TAKEN_OVER, Mark
from twolane.router.requests.record import RequestRecord
from twolane.router.requests.trace import spans_of, workers_of
from twolane.router.requests.trace_context import TraceContext

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

REQUEST = "request"
_SCOPE = InstrumentationScope("twolane")
_EVENTS = (RETRY, TAKEN_OVER)  # the marks that are no end of a span
_MOST_KEPT = 4096  # attributes, by key and value
_LOCAL = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _LOCAL | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK

Spans: TypeAlias = "RepeatedCompositeFieldContainer[Span]"

log = logging.getLogger(__name__)


class SpanEncoder:
    """Encodes the requests of one router. `unix_offset` is the Unix time at 0 of the router's
    clock, in seconds."""

    def __init__(self, resource: Resource, *, router_id: str, unix_offset: float) -> None:
        # What all messages begin with, as the library encodes it: the resource and the scope.
        nobody = SpanContext(1, 1, is_remote=False)
        span = ReadableSpan("", nobody, resource=resource, instrumentation_scope=_SCOPE)
        self._empty = encode_spans([span])
        self._empty.resource_spans[0].scope_spans[0].ClearField("spans")
        self._router_id = router_id
        self._unix_offset = unix_offset

    def message(self) -> ExportTraceServiceRequest:
        """Without spans."""
        message = ExportTraceServiceRequest()
        message.CopyFrom(self._empty)
        return message

    def add(self, record: RequestRecord, message: ExportTraceServiceRequest) -> None:
        """Add the spans of a request that is over and sampled. One that cannot be encoded is left
        out, and logged."""
        assert record.trace is not None
        spans = spans_in(message)
        n_before = len(spans)
        try:
            self._add(record, record.trace, spans)
        except Exception:  # what protobuf cannot hold, or a bug: it costs this trace alone
            del spans[n_before:]
            log.exception("request %s is exported without its trace", record.submission_id)

    def _add(self, record: RequestRecord, context: TraceContext, spans: Spans) -> None:
        ended = record.arrived if record.ended is None else record.ended
        trace_id, own_id = context.trace_id.to_bytes(16), context.span_id.to_bytes(8)
        state = TraceState.from_header([context.state]).to_header() if context.state else ""
        for part in spans_of(record, ended):
            span = spans.add(
                trace_id=trace_id,
                span_id=random.randbytes(8),
                parent_span_id=own_id,
                start_time_unix_nano=self._ns(part.start),
                end_time_unix_nano=self._ns(part.end),
            )
            span.MergeFrom(_part(part.name, try_of(part.attempt), part.where))
            span.trace_state = state
        span = spans.add(
            trace_id=trace_id,
            span_id=own_id,
            parent_span_id=context.parent_id.to_bytes(8) if context.parent_id else b"",
            start_time_unix_nano=self._ns(record.arrived),
            end_time_unix_nano=self._ns(ended),
            flags=_REMOTE if context.parent_id else _LOCAL,
            events=[self._event(mark) for mark in record.journal if mark.what in _EVENTS],
        )
        outcome = (record.finish, record.detail, record.n_attempts)
        span.MergeFrom(
            _whole(record.model, self._router_id, record.priority, record.fence, *outcome)
        )
        span.trace_state = state
        span.attributes.extend(_own(record))

    def _event(self, mark: Mark) -> Span.Event:
        return Span.Event(
            name=mark.what,
            time_unix_nano=self._ns(mark.at),
            attributes=(
                _count("twolane.attempt", try_of(mark.attempt)),
                _text("twolane.worker", workers_of(mark)),
                _text("note", mark.note),
            ),
        )

    def _ns(self, at: float) -> int:
        """Nanoseconds of Unix time of a moment on the router's clock."""
        return int((self._unix_offset + at) * 1e9)


def spans_in(message: ExportTraceServiceRequest) -> Spans:
    return message.resource_spans[0].scope_spans[0].spans


@lru_cache(_MOST_KEPT)
def _part(name: str, attempt: int, where: str) -> Span:
    """What spans of parts have in common; to be copied, never changed."""
    attributes = [_count("twolane.attempt", attempt)]
    if where:
        attributes.append(_text("twolane.worker", where))
    return Span(
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        attributes=attributes,
        status=Status(),
        flags=_LOCAL,
    )


@lru_cache(_MOST_KEPT)
def _whole(
    model: str, router: str, priority: int, takeovers: int, finish: str, error: str, attempts: int
) -> Span:
    """What many requests' own spans have in common; to be copied, never changed. Names are
    OpenTelemetry's where it has one."""
    is_whole = finish in ("stop", "length")
    reasons = ArrayValue(values=[AnyValue(string_value=finish)])
    return Span(
        name=REQUEST,
        kind=Span.SPAN_KIND_SERVER,
        attributes=[
            _text("gen_ai.request.model", model),
            _text("twolane.router", router),
            _count("twolane.priority", priority),
            _count("twolane.takeovers", takeovers),
            KeyValue(key="gen_ai.response.finish_reasons", value=AnyValue(array_value=reasons)),
            _count("twolane.attempts", attempts),
            *([_text("error.type", error)] if error else []),
        ],
        status=Status() if is_whole else Status(code=Status.STATUS_CODE_ERROR, message=finish),
    )


def _own(record: RequestRecord) -> Iterator[KeyValue]:
    """The attributes that each request has for itself."""
    yield _text("gen_ai.response.id", record.request_id)
    yield _text("twolane.submission_id", record.submission_id)
    yield _count("gen_ai.usage.input_tokens", record.n_prompt)
    yield _count("gen_ai.usage.output_tokens", record.n_output)
    ledger = record.ledger
    if ledger is not None:
        ttft = AnyValue(double_value=ledger.ttft_s)
        yield KeyValue(key="gen_ai.server.time_to_first_token", value=ttft)
        yield _count("twolane.cached_tokens", ledger.cached_tokens)
        yield _count("twolane.transfer_bytes", ledger.transfer_bytes)


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _count(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))
