"""When a router exports traces, and where to."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from twolane.deploy.errors import StartError
from twolane.deploy.process import otlp
from twolane.deploy.process.otlp import collector, export_config, traces_to
from twolane.router.config import RouterConfig
from twolane.router.requests.traces import NO_TRACES, ExportConfig
from twolane.router.router import Router
from twolane.router.testing.client import ask, message
from twolane.router.testing.cluster import ScriptedCluster

URL, OTHER = "http://one:4317", "http://two:4317"
_EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"


@pytest.mark.parametrize(
    ("given", "environ", "where"),
    [
        (None, {}, None),
        (URL, {}, URL),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": OTHER}, OTHER),
        (URL, {"OTEL_EXPORTER_OTLP_ENDPOINT": OTHER}, URL),
        (URL, {"OTEL_TRACES_EXPORTER": "none"}, None),
        (URL, {"OTEL_SDK_DISABLED": "true"}, None),
        (URL, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, URL),
        (None, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, None),
    ],
)
def test_traces_go_where_the_flag_or_the_standard_variables_say(
    given: str | None, environ: dict[str, str], where: str | None
) -> None:
    assert collector(given, environ) == where


def test_protocol_that_we_lack_is_refused_at_the_start() -> None:
    with pytest.raises(StartError, match="by grpc only"):
        collector(URL, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})


def test_batches_are_as_the_librarys_variables_say() -> None:
    assert export_config({}) == ExportConfig()
    environ = {
        "OTEL_BSP_SCHEDULE_DELAY": "250",
        "OTEL_BSP_MAX_QUEUE_SIZE": "7",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "3",
    }
    assert export_config(environ) == ExportConfig(delay_s=0.25, most_waiting=7, batch_spans=3)
    for text in ("0", "-1", "soon"):
        with pytest.raises(StartError, match=f"OTEL_BSP_SCHEDULE_DELAY is '{text}': a whole"):
            export_config({"OTEL_BSP_SCHEDULE_DELAY": text})


async def test_nothing_is_loaded_without_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    async with traces_to(None, "router-0") as traces:
        assert traces is NO_TRACES


async def test_collector_has_every_span_when_the_router_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp, "_FLUSH_S", 60.0)
    received: list[bytes] = []

    async def export(request: bytes, context: Any) -> bytes:
        received.append(request)
        return b""

    server = grpc.aio.server()
    method: Any = grpc.unary_unary_rpc_method_handler(export)
    handler = grpc.method_handlers_generic_handler(_EXPORT, {"Export": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    cluster = ScriptedCluster()
    async with (
        traces_to(f"http://127.0.0.1:{port}", "router-7") as traces,
        Router(RouterConfig(), cluster, traces=traces) as router,
    ):
        cluster.router_announce = router.announce
        workers = [cluster.start_worker(name) for name in ("p0", "d0")]
        outcome = await ask(router, message([1, 2, 3], max_tokens=3))
        for worker in workers:
            worker.kill()
    await server.stop(None)
    whole = b"".join(received)
    assert bytes.fromhex(outcome.first.submission_id) in whole, "the trace's id"
    for text in (b"router-7", b"twolane-router", b"prefill", b"decode"):
        assert text in whole


async def test_router_stops_although_its_collector_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_FLUSH_S", 0.05)
    cluster = ScriptedCluster()
    async with (
        asyncio.timeout(40),  # alone it would try for a minute
        traces_to("http://127.0.0.1:1", "router-0") as traces,
        Router(RouterConfig(), cluster, traces=traces) as router,
    ):
        cluster.router_announce = router.announce
        workers = [cluster.start_worker(name) for name in ("p0", "d0")]
        await ask(router, message([1, 2, 3], max_tokens=3))
        for worker in workers:
            worker.kill()
