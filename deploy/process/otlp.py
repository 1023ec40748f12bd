"""Where a router's traces go: an OpenTelemetry collector, by OTLP over gRPC.

They are off unless `--otlp-endpoint` or OTEL_EXPORTER_OTLP_ENDPOINT names a collector. The other
variables of the library apply as they do everywhere (OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_…).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from twolane.deploy.errors import StartError
from twolane.router.requests.traces import NO_TRACES, ExportConfig, Traces

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_FLUSH_S = 2.0  # how long the last spans may take at a stop
_DELAY_MS, _MOST_WAITING = "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_QUEUE_SIZE"
_BATCH_SPANS = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"


def collector(given: str | None, environ: Mapping[str, str]) -> str | None:
    """The collector's URL; None: no traces. Raises `StartError` for a protocol that we lack."""
    is_off = environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    if is_off or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    endpoint = given or next((environ[name] for name in ENDPOINTS if environ.get(name)), None)
    if endpoint is None:
        return None
    for name in _PROTOCOLS:
        if environ.get(name, "grpc") != "grpc":
            raise StartError(f"{name} is {environ[name]}: a router sends its traces by grpc only")
    return endpoint


def export_config(environ: Mapping[str, str]) -> ExportConfig:
    """Raises `StartError` for what is no number."""
    default = ExportConfig()
    return ExportConfig(
        delay_s=_number(environ, _DELAY_MS, round(default.delay_s * 1e3)) / 1e3,
        most_waiting=_number(environ, _MOST_WAITING, default.most_waiting),
        batch_spans=_number(environ, _BATCH_SPANS, default.batch_spans),
        flush_s=_FLUSH_S,
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise StartError(f"{name} is {text!r}: a whole number, 1 or more")
    return int(text)


@asynccontextmanager
async def traces_to(given: str | None, router_id: str) -> AsyncIterator[Traces]:
    """The traces of one router. At the end, what is left is sent, if the collector takes it within
    two seconds. Raises `StartError` if the library is not installed."""
    endpoint = collector(given, os.environ)
    if endpoint is None:
        yield NO_TRACES
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        from twolane.router.span_encoding import SpanEncoder
        from twolane.router.span_export import Exporter, SpanExport
        from twolane.router.tracing import RequestTraces
    except ImportError as error:
        text = f"traces for {endpoint} need a library: pip install 'twolane[otel]' ({error})"
        raise StartError(text) from error
    own = {"service.name": "twolane-router", "service.instance.id": router_id}
    if "OTEL_SERVICE_NAME" in os.environ:
        del own["service.name"]
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    exporter, loop = Exporter(endpoint=endpoint), asyncio.get_running_loop()
    encoder = SpanEncoder(
        provider.resource, router_id=router_id, unix_offset=time.time() - loop.time()
    )
    export = SpanExport(encoder, exporter.send, exporter.shutdown, export_config(os.environ))
    async with export.running() as add:
        yield RequestTraces(provider.sampler, add)
