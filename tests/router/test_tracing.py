"""The traces that a router exports: whole, in the caller's trace, with the ledger's times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, ParentBasedTraceIdRatio, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from tests.cluster.test_takeover import LONG, asked_at
from tests.cluster.test_takeover import play as play_routers
from tests.cluster.test_virtual_cluster import expected
from tests.cluster.virtual_routers import RoutedCluster
from twolane import AsyncClient
from twolane.router.requests.request import Job
from twolane.router.requests.trace_context import CALLED_BY, TraceHeaders
from twolane.router.router import Router
from twolane.router.span_encoding import REQUEST, SpanEncoder
from twolane.router.testing.client import Outcome, ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.served import serve_cluster
from twolane.router.tracing import RequestTraces
from twolane.v1 import inference_pb2_grpc

PROMPT = [1, 2, 3, 4, 5]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ASIDE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Collector:
    """What routers export, as a collector has it; times are those of their clock."""

    def __init__(self, sampler: Sampler = DEFAULT_ON) -> None:
        self._sampler = sampler
        self.messages: list[ExportTraceServiceRequest] = []  # one of each router

    def traces(self, router_id: str = "router-0") -> RequestTraces:
        resource = Resource.create({"service.instance.id": router_id})
        encoder = SpanEncoder(resource, router_id=router_id, unix_offset=0.0)
        self.messages.append(message := encoder.message())
        return RequestTraces(self._sampler, lambda record: encoder.add(record, message))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return [span for message in self.messages for span in decoded(message)]

    def root(self, nth: int = 0) -> ReadableSpan:
        return [span for span in self.spans if span.name == REQUEST][nth]

    def sum_s(self, name: str) -> float:
        return sum(length_s(span) for span in self.spans if span.name == name)


def decoded(message: ExportTraceServiceRequest) -> list[ReadableSpan]:
    """The spans of a message as the library has them."""
    (of_router,) = message.resource_spans
    (of_scope,) = of_router.scope_spans
    resource = Resource(attributes_of(of_router.resource.attributes))
    return [
        ReadableSpan(
            span.name,
            context_of(span, span.span_id),
            context_of(span, span.parent_span_id, is_remote=bool(span.flags & 0x200))
            if span.parent_span_id
            else None,
            resource,
            attributes_of(span.attributes),
            [
                Event(event.name, attributes_of(event.attributes), event.time_unix_nano)
                for event in span.events
            ],
            kind=SpanKind.SERVER if span.kind == span.SPAN_KIND_SERVER else SpanKind.INTERNAL,
            status=Status(StatusCode(span.status.code), span.status.message or None),
            start_time=span.start_time_unix_nano,
            end_time=span.end_time_unix_nano,
            instrumentation_scope=InstrumentationScope(of_scope.scope.name),
        )
        for span in of_scope.spans
    ]


def context_of(span: pb.Span, span_id: bytes, *, is_remote: bool = False) -> SpanContext:
    ids = int.from_bytes(span.trace_id), int.from_bytes(span_id)
    return SpanContext(*ids, is_remote, TraceFlags(1), TraceState.from_header([span.trace_state]))


def attributes_of(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: value_of(each.value) for each in attributes}


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    found = getattr(value, kind)
    return tuple(map(value_of, found.values)) if kind == "array_value" else found


def length_s(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def assert_whole(collector: Collector) -> None:
    """One trace; every span but the first is a child of one that is there, and lies in its time."""
    assert len({span.context.trace_id for span in collector.spans}) == 1
    by_id = {span.context.span_id: span for span in collector.spans}
    assert len(by_id) == len(collector.spans)
    orphans = [s for s in collector.spans if s.parent is None or s.parent.span_id not in by_id]
    assert [span.name for span in orphans] == [REQUEST]
    for span in collector.spans:
        parent = by_id.get(span.parent.span_id) if span.parent else None
        if parent is not None and span.name != REQUEST:
            assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time  # type: ignore[operator]


def assert_as_ledger(collector: Collector, outcome: Outcome) -> None:
    ledger, one_hop_s = outcome.ledger, 0.003  # workers measure on their own side of the link
    assert collector.sum_s("queued") == pytest.approx(ledger.queued_s, abs=1e-6)
    for name in ("prefill", "prefill wait"):
        of_ledger = getattr(ledger, f"{name.replace(' ', '_')}_s")
        assert collector.sum_s(name) == pytest.approx(of_ledger, abs=one_hop_s)
    root = collector.root(-1).attributes or {}
    assert root["gen_ai.usage.input_tokens"] == ledger.prompt_tokens
    assert root["gen_ai.usage.output_tokens"] == ledger.output_tokens
    assert root["twolane.attempts"] == ledger.attempts
    assert root["gen_ai.server.time_to_first_token"] == ledger.ttft_s


def test_disaggregated_request_is_one_whole_trace_with_the_ledgers_times() -> None:
    collector = Collector()

    async def scene(cluster: RoutedCluster) -> None:
        cluster.router.traces = collector.traces()
        outcome = await ask(cluster.router, message(PROMPT, max_tokens=20))
        assert_whole(collector)
        assert_as_ledger(collector, outcome)
        names = [span.name for span in collector.spans]
        assert [name for name in names if name[-4:] != "wait"] == [
            "prefill", "transfer", "decode", REQUEST,
        ]  # fmt: skip
        spent_s = sum(length_s(span) for span in collector.spans if span.name != REQUEST)
        assert spent_s == pytest.approx(outcome.ledger.total_s, abs=1e-6), "no gap, no overlap"
        assert collector.root().context.trace_id == int(outcome.first.submission_id, 16)

    play_routers(scene, n_routers=1)


@pytest.mark.parametrize("called_by", [TraceHeaders(), TraceHeaders(CALLER, "vendor=1")])
def test_spans_are_encoded_as_the_library_encodes_them(called_by: TraceHeaders) -> None:
    collector = Collector()

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        CALLED_BY.set(called_by)
        await ask(router, message(PROMPT, max_tokens=3))
        asking = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=90)))
        await asyncio.sleep(0.3)
        (status,) = router.status().requests
        router.operations.report_gone(cluster.workers[status.decode_worker].epoch)
        cluster.workers[status.decode_worker].kill()
        await asyncio.sleep(0.1)
        router.cancel("x")
        await asking

    play(script, ("p0", "d0", "d1"), traces=collector.traces())
    (exported,) = collector.messages
    assert {span.status.is_ok for span in collector.spans} == {True, False}
    assert any(span.events for span in collector.spans)
    assert exported == encode_spans(collector.spans)


def test_request_whose_worker_was_lost_is_one_trace_with_both_attempts() -> None:
    collector = Collector()

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=90)))
        await asyncio.sleep(0.3)
        (status,) = router.status().requests
        router.operations.report_gone(cluster.workers[status.decode_worker].epoch)
        cluster.workers[status.decode_worker].kill()
        outcome = await asking
        assert_whole(collector)
        decodes = [span.attributes or {} for span in collector.spans if span.name == "decode"]
        assert [each["twolane.attempt"] for each in decodes] == [1, 2]
        assert decodes[0]["twolane.worker"] != decodes[1]["twolane.worker"]
        events = {event.name: event.attributes or {} for event in collector.root().events}
        assert events["retry"]["note"] == "decode_worker_lost"
        assert (collector.root().attributes or {})["twolane.attempts"] == outcome.ledger.attempts

    play(script, ("p0", "d0", "d1"), traces=collector.traces())


@pytest.mark.parametrize("called_by", ["", CALLER])
def test_taken_over_request_is_one_trace_of_both_routers(called_by: str) -> None:
    collector = Collector()

    async def scene(cluster: RoutedCluster) -> None:
        CALLED_BY.set(TraceHeaders(called_by))
        for name, life in cluster.routers.items():
            life.router.traces = collector.traces(name)
        task = await asked_at(cluster, "r0", LONG)
        await cluster.routers["r0"].kill()
        assert await task == expected(LONG)
        first, second = collector.root(0), collector.root(1)
        assert [s.resource.attributes["service.instance.id"] for s in (first, second)] == [
            "r0", "r1",
        ]  # fmt: skip
        assert (second.attributes or {})["twolane.takeovers"] == 1
        assert "taken over" in [event.name for event in second.events]
        assert length_s(second) > 0
        if called_by:
            assert {f"{span.parent.span_id:016x}" for span in (first, second) if span.parent} == {
                CALLER.split("-")[2]
            }
            assert len({span.context.trace_id for span in collector.spans}) == 1
        else:
            assert_whole(collector)
            assert second.parent is not None
            assert second.parent.span_id == first.context.span_id
        assert any(s.name == "decode" and s.resource == second.resource for s in collector.spans)
        await cluster.settle()

    play_routers(scene)


def test_failed_request_has_its_error_and_a_refused_one_no_span() -> None:
    collector = Collector()

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=500)))
        await asyncio.sleep(0.2)
        router.cancel("x")
        await asking
        assert collector.root().status.status_code is trace.StatusCode.ERROR
        assert collector.root().status.description == "cancelled"
        n_spans = len(collector.spans)
        assert (await ask(router, message([], max_tokens=1))).error is not None
        assert len(collector.spans) == n_spans

    play(script, traces=collector.traces())


def test_caller_decides_whether_a_request_is_sampled_and_its_state_travels_on() -> None:
    collector = Collector(ParentBasedTraceIdRatio(0.0))

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for parent in ("", ASIDE, CALLER, "00-nonsense"):
            CALLED_BY.set(TraceHeaders(parent, "vendor=1"))
            await ask(router, message(PROMPT, max_tokens=3))
        assert [span.name for span in collector.spans].count(REQUEST) == 1
        (root,) = [span for span in collector.spans if span.name == REQUEST]
        assert f"{root.context.trace_id:032x}" == CALLER.split("-")[1]
        assert root.context.trace_state.get("vendor") == "1"
        assert root.parent is not None
        assert root.parent.is_remote

    play(script, traces=collector.traces())


def test_names_of_tenants_and_text_are_in_no_trace() -> None:
    collector = Collector()

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        await ask(router, message(PROMPT, max_tokens=3), caller=client_of("acme-secret"))
        assert collector.spans
        assert "acme-secret" not in "".join(span.to_json() for span in collector.spans)

    play(script, traces=collector.traces())


def test_submission_id_of_any_form_names_a_trace() -> None:
    traces = Collector().traces()
    for name in ("0" * 32, "A" * 32, "é", "x"):
        job = Job(
            submission_id=name, request_id="x", model="m", token_ids=(), params=None,  # type: ignore[arg-type]
            arrived=0.0,
        )  # fmt: skip
        context = traces.traced(job).trace
        assert context is not None
        assert 0 < context.trace_id < 1 << 128
        assert traces.traced(job).trace == context
        ids = {traces.traced(replace(job, fence=fence)).trace.span_id for fence in range(9)}  # type: ignore[union-attr]
        assert len(ids) == 9, "each router's own span has its own id"
        assert 0 < min(ids) < max(ids) < 1 << 64


@pytest.fixture
def own_span() -> Iterator[trace.Span]:
    """The client's program uses OpenTelemetry itself."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    with tracer.start_as_current_span("asks") as span:
        yield span


async def test_both_doors_read_the_callers_span_and_name_theirs(own_span: trace.Span) -> None:
    collector = Collector()
    async with serve_cluster("p0", "d0", traces=collector.traces()) as (server, _):
        while not server.router.can_serve():
            await asyncio.sleep(0.01)
        # our own client, multiplexed
        async with AsyncClient(server.address) as client:
            await client.generate(token_ids=PROMPT, max_tokens=3)
        # any other gRPC client
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            call = stub.Generate(message(PROMPT, max_tokens=3), metadata=(("traceparent", CALLER),))
            said = dict(await call.initial_metadata())["traceresponse"]
            async for _ in call:
                pass
            # one that does not trace: it would cost an operation, and its submission id tells
            call = stub.Generate(message(PROMPT, max_tokens=3))
            assert "traceresponse" not in dict(await call.initial_metadata())
            async for _ in call:
                pass
        # HTTP, twice on one connection: the second call has no caller
        async with httpx2.AsyncClient(
            base_url=f"http://{server.http_address}", timeout=30.0
        ) as http:
            body = {"model": "scripted", "prompt": PROMPT, "max_tokens": 3}
            body["model"] = server.router.models()[0].name
            heads = [
                (await http.post("/v1/completions", json=body, headers=headers)).headers
                for headers in ({"traceparent": CALLER}, {})
            ]
        while len([span for span in collector.spans if span.name == REQUEST]) < 5:
            await asyncio.sleep(0.01)
    roots = [collector.root(nth) for nth in (0, 1, 3, 4)]
    parents = [root.parent for root in roots]
    mine = own_span.get_span_context()
    assert parents[0] is not None
    assert (parents[0].trace_id, parents[0].span_id) == (mine.trace_id, mine.span_id)
    theirs = CALLER.split("-")[2]
    assert [f"{each.span_id:016x}" if each else "" for each in parents[1:]] == [theirs, theirs, ""]
    names = [said, *(head["traceresponse"] for head in heads)]
    assert [name.split("-")[2] for name in names] == [
        f"{root.context.span_id:016x}" for root in roots[1:]
    ]


async def test_router_without_traces_names_none() -> None:
    async with serve_cluster("p0", "d0") as (server, _):
        while not server.router.can_serve():
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            call = stub.Generate(message(PROMPT, max_tokens=3), metadata=(("traceparent", CALLER),))
            assert "traceresponse" not in dict(await call.initial_metadata())
            async for _ in call:
                pass
