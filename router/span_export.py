"""Sends the spans of requests that are over to a collector, those of many requests at once.

    over ──> queue, bounded ──> a message, 16 requests at a time ──> a thread that waits for
                                between other work of the loop       the collector's answer

A request in the queue costs an append; making its spans among others' takes half the time of making
them at its end, when their code and data are in no cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan

from twolane.router.requests.record import RequestRecord
from twolane.router.requests.traces import ExportConfig
from twolane.router.span_encoding import SpanEncoder, spans_in

_AT_ONCE = 16  # requests, half a millisecond
_SPANS_A_REQUEST = 4  # or more
log = logging.getLogger(__name__)


class Exporter(OTLPSpanExporter):
    """The library's, for messages that are made already: subclasses say how data become one."""

    _message = ExportTraceServiceRequest()

    def send(self, message: ExportTraceServiceRequest) -> None:
        """Blocks until the collector has it, or the library has tried for long enough. Is called by
        one thread at a time."""
        self._message = message
        self.export(())

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return self._message

    def _count_data(self, data: Sequence[ReadableSpan]) -> int:
        return len(spans_in(self._message))


class SpanExport:
    """Exports requests while `running`. `send` blocks, and is called on a thread; `close` makes it
    return soon, and whenever it is called afterwards."""

    def __init__(
        self,
        encoder: SpanEncoder,
        send: Callable[[ExportTraceServiceRequest], None],
        close: Callable[[], None],
        config: ExportConfig,
    ) -> None:
        self._encoder = encoder
        self._send = send
        self._close = close
        self._config = config
        self._waiting: deque[RequestRecord] = deque()
        self._is_due = asyncio.Event()
        self._is_ending = False
        self._n_lost = 0

    def _add(self, record: RequestRecord) -> None:
        if len(self._waiting) >= self._config.most_waiting:
            self._n_lost += 1
            return
        self._waiting.append(record)
        is_batch = len(self._waiting) * _SPANS_A_REQUEST >= self._config.batch_spans
        if is_batch or 2 * len(self._waiting) >= self._config.most_waiting:
            self._is_due.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Callable[[RequestRecord], None]]:
        """Yields what exports a request soon, without blocking. At the end, what waits is sent, if
        that takes no longer than `flush_s`."""
        task = asyncio.create_task(self._run(), name="span-export")
        try:
            yield self._add
        finally:
            self._is_ending = True
            self._is_due.set()
            try:
                await asyncio.wait([task], timeout=self._config.flush_s)
            finally:
                self._close()
                await task

    async def _run(self) -> None:
        is_last = False
        while not is_last:
            try:
                async with asyncio.timeout(self._config.delay_s):
                    await self._is_due.wait()
            except TimeoutError:
                pass
            self._is_due.clear()
            is_last = self._is_ending
            await self._send_all()

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            try:
                await loop.run_in_executor(None, self._send, await self._message())
            except Exception:  # of the library or the encoder: requests are served all the same
                log.exception("spans of a batch of requests are lost")
        if self._n_lost:
            log.warning("%d requests have no trace: the collector is too slow", self._n_lost)
            self._n_lost = 0

    async def _message(self) -> ExportTraceServiceRequest:
        message = self._encoder.message()
        spans = spans_in(message)
        while self._waiting and len(spans) < self._config.batch_spans:
            for _ in range(min(_AT_ONCE, len(self._waiting))):
                self._encoder.add(self._waiting.popleft(), message)
            await asyncio.sleep(0)
        return message
