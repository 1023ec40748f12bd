"""How spans get to a collector: in batches, and never at the router's cost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from tests.until import until
from twolane.router.requests.record import RequestRecord
from twolane.router.requests.traces import ExportConfig
from twolane.router.router import Router
from twolane.router.span_encoding import REQUEST, SpanEncoder, spans_in
from twolane.router.span_export import SpanExport
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.tracing import RequestTraces

LONG_S = 3600.0


def encoder() -> SpanEncoder:
    return SpanEncoder(Resource.create(), router_id="router-0", unix_offset=0.0)


@pytest.fixture(scope="module")
def over() -> RequestRecord:
    """A request that is over."""
    records: list[RequestRecord] = []

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        await ask(router, message([1, 2, 3], max_tokens=3))

    play(script, traces=RequestTraces(DEFAULT_ON, records.append))
    (record,) = records
    return record


class Collector:
    """Keeps what it is sent, if it `takes` anything and is not closed; `on_send` is called
    first."""

    def __init__(self, on_send: Callable[[], object] = lambda: None, *, takes: bool = True) -> None:
        self.batches: list[list[str]] = []  # ids of requests, by message
        self.n_calls = 0
        self.closed = threading.Event()
        self._on_send, self._takes = on_send, takes

    def export(self, config: ExportConfig) -> SpanExport:
        return SpanExport(encoder(), self._send, self._close, config)

    def _send(self, message: ExportTraceServiceRequest) -> bool:
        self.n_calls += 1
        self._on_send()
        if self.closed.is_set() or not self._takes:
            return False
        roots = [span for span in spans_in(message) if span.name == REQUEST]
        ids = [attribute for root in roots for attribute in root.attributes]
        self.batches.append(
            [each.value.string_value for each in ids if each.key == "gen_ai.response.id"]
        )
        return True

    def _close(self) -> None:
        self.closed.set()

    @property
    def ids(self) -> list[str]:
        return [each for batch in self.batches for each in batch]


def named(record: RequestRecord, n: int) -> list[RequestRecord]:
    return [replace(record, request_id=str(nth)) for nth in range(n)]


async def test_many_requests_are_sent_at_once_and_few_in_time(over: RequestRecord) -> None:
    collector = Collector()
    many, few = named(over, 200), named(over, 3)
    async with collector.export(ExportConfig(delay_s=LONG_S, batch_spans=256)).running() as add:
        for record in many:
            add(record)
        while len(collector.ids) < len(many):
            await asyncio.sleep(0.001)
    assert collector.ids == [record.request_id for record in many]
    assert 1 < len(collector.batches) < 9, "neither all in one message nor each in its own"
    collector = Collector()
    async with collector.export(ExportConfig(delay_s=0.01)).running() as add:
        for record in few:
            add(record)
        while len(collector.ids) < len(few):
            await asyncio.sleep(0.001)
    assert len(collector.batches) == 1


async def test_requests_are_sent_before_as_many_wait_as_may(over: RequestRecord) -> None:
    collector, many = Collector(), named(over, 40)
    config = ExportConfig(delay_s=LONG_S, most_waiting=8)
    export = collector.export(config)
    async with export.running() as add:
        for record in many:
            add(record)
            await until(lambda: len(export._waiting) < config.most_waiting, "there is room")
        await until(lambda: len(collector.ids) >= len(many) - 3, "they are sent")


async def test_rest_is_sent_at_the_end(over: RequestRecord) -> None:
    collector = Collector()
    async with collector.export(ExportConfig(delay_s=LONG_S, flush_s=60.0)).running() as add:
        add(over)
    assert collector.ids == [over.request_id]
    assert collector.closed.is_set()


@pytest.mark.parametrize("broken", [{"n_prompt": 1 << 70}, {"request_id": "\ud800"}])
async def test_request_that_cannot_be_encoded_costs_only_its_own_trace(
    over: RequestRecord, broken: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector()
    async with collector.export(ExportConfig(delay_s=LONG_S, flush_s=60.0)).running() as add:
        for record in (over, replace(over, **broken), over):  # type: ignore[arg-type]
            add(record)
    assert collector.ids == [over.request_id] * 2
    assert over.submission_id in caplog.text


def test_message_has_nothing_of_a_request_that_cannot_be_encoded(over: RequestRecord) -> None:
    whole = encoder()
    whole.add(replace(over, request_id="\ud800"), message := whole.message())
    assert not spans_in(message)


async def test_error_of_a_collector_ends_neither_the_router_nor_the_export(
    over: RequestRecord, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [OSError("the first message fails")]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    collector = Collector(fail_once)
    async with collector.export(ExportConfig(delay_s=0.01)).running() as add:
        add(over)
        while errors:
            await asyncio.sleep(0.001)
        add(replace(over, request_id="later"))
        while not collector.ids:
            await asyncio.sleep(0.001)
    assert collector.ids == ["later"]
    assert "the first message fails" in caplog.text
    assert lost(caplog) == [(1, "the collector did not take them")]


async def test_what_a_slow_collector_may_cost_is_bounded(
    over: RequestRecord, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    collector = Collector()
    config = ExportConfig(delay_s=LONG_S, flush_s=60.0, most_waiting=5)
    async with collector.export(config).running() as add:
        for record in named(over, 8):
            add(record)
    assert collector.ids == ["0", "1", "2", "3", "4"]
    assert lost(caplog) == [(3, "the collector is too slow")]


async def test_what_a_stop_does_not_wait_for_is_counted_as_lost_by_the_stop(
    over: RequestRecord, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(lambda: collector.closed.wait())
    config = ExportConfig(delay_s=LONG_S, flush_s=0.02, batch_spans=64)
    async with collector.export(config).running() as add:
        for record in named(over, 100):
            add(record)
    assert collector.n_calls <= 1, "a closed exporter gets nothing more"
    assert lost(caplog) == [(100, "the router stopped before the collector had them")]


async def test_what_a_collector_refuses_is_counted_and_not_laid_to_a_stop(
    over: RequestRecord, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(takes=False)
    async with collector.export(ExportConfig(delay_s=LONG_S, flush_s=60.0)).running() as add:
        for record in named(over, 5):
            add(record)
    assert lost(caplog) == [(5, "the collector did not take them")]


def lost(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """How many requests have no trace, and why, as the log says."""
    said = [record.args for record in caplog.records if "have no trace" in record.msg]
    assert all(isinstance(args, tuple) for args in said)
    return said  # type: ignore[return-value]
