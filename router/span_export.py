"""Sends the spans of requests that are over to a collector, those of many requests at once.

    over ──> queue, bounded ──> a message, 16 requests at a time ──> a thread that waits for
                                between other work of the loop       the collector's answer

A request in the queue costs an append; making its spans among others' takes half the time of making
them at its end, when their code and data are in no cache.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from twolane.router.requests.record import RequestRecord
from twolane.router.requests.traces import ExportConfig
from twolane.router.span_encoding import SpanEncoder, spans_in

_AT_ONCE = 16  # requests, half a millisecond
_SPANS_A_REQUEST = 4  # or more
log = logging.getLogger(__name__)


class _Loss(StrEnum):
    """Why requests have no trace."""

    FULL = "the collector is too slow"  # as many wait as may
    REFUSED = "the collector did not take them"
    STOPPED = "the router stopped before the collector had them"


class Exporter(OTLPSpanExporter):
    """The library's, for messages that are made already: subclasses say how data become one."""

    _message = ExportTraceServiceRequest()

    def send(self, message: ExportTraceServiceRequest) -> bool:
        """Blocks until the collector has it, or the library has tried for long enough: then False,
        and it has logged why. Is called by one thread at a time."""
        self._message = message
        return self.export(()) is SpanExportResult.SUCCESS

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return self._message

    def _count_data(self, data: Sequence[ReadableSpan]) -> int:
        return len(spans_in(self._message))


class SpanExport:
    """Exports requests while `running`. `send` blocks, is called on a thread, and tells whether the
    collector has the message; `close` makes it return soon: no call is begun
    afterwards, but for one that waits for its thread."""

    def __init__(
        self,
        encoder: SpanEncoder,
        send: Callable[[ExportTraceServiceRequest], bool],
        close: Callable[[], None],
        config: ExportConfig,
    ) -> None:
        self._encoder = encoder
        self._send = send
        self._close = close
        self._config = config
        self._waiting: deque[RequestRecord] = deque()
        self._is_due = asyncio.Event()
        self._is_ending = self._is_closed = False
        self._lost = Counter[_Loss]()  # requests, until it is logged

    def _add(self, record: RequestRecord) -> None:
        if len(self._waiting) >= self._config.most_waiting:
            self._lost[_Loss.FULL] += 1
            return
        self._waiting.append(record)
        is_batch = len(self._waiting) * _SPANS_A_REQUEST >= self._config.batch_spans
        if is_batch or 2 * len(self._waiting) >= self._config.most_waiting:
            self._is_due.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Callable[[RequestRecord], None]]:
        """Yields what exports a request soon, without blocking. At the end, what waits is sent, if
        that takes no longer than `flush_s`; the rest is logged as lost."""
        task = asyncio.create_task(self._run(), name="span-export")
        try:
            yield self._add
        finally:
            self._is_ending = True
            self._is_due.set()
            try:
                await asyncio.wait([task], timeout=self._config.flush_s)
            finally:
                self._is_closed = True
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
        while self._waiting and not self._is_closed:
            message, n_requests = await self._message()
            if not await self._is_taken(message):
                self._lost[_Loss.STOPPED if self._is_closed else _Loss.REFUSED] += n_requests
        if self._is_closed:
            self._lost[_Loss.STOPPED] += len(self._waiting)
            self._waiting.clear()
        for why, n_lost in self._lost.items():
            if n_lost:
                log.warning("%d requests have no trace: %s", n_lost, why)
        self._lost.clear()

    async def _is_taken(self, message: ExportTraceServiceRequest) -> bool:
        if self._is_closed:
            return False
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._send, message)
        except Exception:  # of the library: requests are served all the same
            log.exception("a batch of spans is lost")
            return False

    async def _message(self) -> tuple[ExportTraceServiceRequest, int]:
        """The spans of those that have waited longest, and how many requests they are."""
        message, n_requests = self._encoder.message(), 0
        spans = spans_in(message)
        while self._waiting and len(spans) < self._config.batch_spans and not self._is_closed:
            n_next = min(_AT_ONCE, len(self._waiting))
            for _ in range(n_next):
                self._encoder.add(self._waiting.popleft(), message)
            n_requests += n_next
            await asyncio.sleep(0)
        return message, n_requests
