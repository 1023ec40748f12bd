"""Prometheus metrics of a worker. One registry per worker: a process may have several."""

from __future__ import annotations

from collections import Counter as TransportCounter
from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from twolane.v1 import worker_pb2
from twolane.worker.worker import Worker

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_REFUSED = {
    "unauthenticated": "Calls without valid credentials",
    "denied": "Calls that the caller's role may not make",
}
_Kind = worker_pb2.RowEvent


class WorkerMetrics:
    """Implements `twolane.worker.observer.WorkerObserver`.

    Counters and histograms are updated by events; gauges are read at each scrape.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        new = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        count = partial(Counter, registry=self.registry)
        self._steps = new("twolane_step_seconds", "Time of a step")
        self._positions = count("twolane_step_positions", "Positions computed")
        self._tokens = count("twolane_tokens", "Tokens sampled")
        self._rows = count("twolane_row_events", "Row news by kind", ["kind"])
        self._prefill_wait = new("twolane_prefill_wait_seconds", "ASSIGN to first chunk")
        self._decode_wait = new("twolane_decode_wait_seconds", "Landed to first step")
        self._transfer = new("twolane_transfer_seconds", "First token to COMMIT")
        self._pages = count("twolane_transfer_pages", "Pages moved out")
        self._bytes = count("twolane_transfer_bytes", "Bytes moved out")
        self._cached = count("twolane_cached_tokens", "Prompt tokens not computed")

    def watch(self, worker: Worker, refused: Mapping[str, int] | None = None) -> None:
        """Also export this worker's gauges, and the calls that its `Gate` refused. Call once."""
        self.registry.register(_Gauges(worker, refused or {}))

    def on_step(self, seconds: float, positions: int) -> None:
        self._steps.observe(seconds)
        self._positions.inc(positions)

    def on_tokens(self, n: int) -> None:
        self._tokens.inc(n)

    def on_event(self, event: worker_pb2.RowEvent) -> None:
        kind = worker_pb2.RowEvent.Kind.Name(event.kind).removeprefix("KIND_").lower()
        self._rows.labels(kind).inc()
        figures = event.figures
        if figures.prefill_s > 0:  # its prompt was computed, wherever the answer ended
            self._prefill_wait.observe(figures.prefill_wait_s)
            self._cached.inc(figures.cached_tokens)
        if figures.decode_s > 0:  # it was in a step; a row that never was has no waiting time
            self._decode_wait.observe(figures.decode_wait_s)
        if event.kind == _Kind.KIND_HANDED_OVER:
            self._transfer.observe(figures.transfer_s)
            self._pages.inc(figures.transfer_pages)
            self._bytes.inc(figures.transfer_bytes)


class _Gauges(Collector):
    """Read from the worker at each scrape, on its event loop."""

    def __init__(self, worker: Worker, refused: Mapping[str, int]) -> None:
        self._worker = worker
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        load = self._worker.load()
        yield self._info()
        pages = GaugeMetricFamily("twolane_pages", "Pages by state", labels=["state"])
        for state in ("quarantined", "used", "pinned", "cached", "free"):
            pages.add_metric([state], getattr(load.pages, state))
        yield pages
        rows = GaugeMetricFamily("twolane_rows", "Rows by state", labels=["state"])
        states: dict[str, int] = {}
        for role in self._worker.roles.all:
            for row in role.rows:
                states[row.state.value] = states.get(row.state.value, 0) + 1
        for state, n in states.items():
            rows.add_metric([state], n)
        yield rows
        yield GaugeMetricFamily(
            "twolane_reserved_growth_pages", "Promised pages", value=load.reserved_growth_pages
        )
        yield GaugeMetricFamily(
            "twolane_prefill_queue_tokens", "Tokens to compute", value=load.prefill_queue_tokens
        )
        yield GaugeMetricFamily(
            "twolane_decode_queue", "Reservations that wait", value=load.decode_queue
        )
        peers = GaugeMetricFamily("twolane_peers", "Peers by transport", labels=["transport"])
        by_transport = TransportCounter(peer.transport for peer in load.transports)
        for transport, n in by_transport.items():
            peers.add_metric([transport], n)
        yield peers
        yield GaugeMetricFamily(
            "twolane_peers_fallen_back",
            "Peers whose pages do not travel by the best transport",
            value=sum(1 for peer in load.transports if peer.instead_of),
        )
        dropped = CounterMetricFamily(
            "twolane_dropped_messages", "Messages not acted upon", labels=["reason"]
        )
        for reason, n in self._worker.dropped().items():
            dropped.add_metric([reason], n)
        yield dropped
        for kind, text in _REFUSED.items():
            refused = CounterMetricFamily(f"twolane_{kind}", text, labels=["method"])
            for name, n in self._refused.items():
                if name.startswith(f"{kind}."):
                    refused.add_metric([name.removeprefix(f"{kind}.")], n)
            yield refused

    def _info(self) -> Metric:
        """Identifies the worker, to join other metrics with."""
        worker = self._worker
        info = InfoMetricFamily("twolane_worker", "Whose page this is")
        info.add_metric(
            [],
            {
                "worker": worker.config.worker_id,
                "pool": worker.config.pool,
                "model": worker.context.spec.model,
            },
        )
        return info
