"""Prometheus figures of one router, in a registry of its own.

Durations are observed as they happen. States and counters are a snapshot that the event loop
publishes; the endpoint shows the latest.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twolane.v1 import cluster_pb2

PAGE_STATES = ("quarantined", "used", "pinned", "cached", "free")
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
# counters of the status, by the part before the first dot: metric name, label, help
_FAMILIES = {
    "resumes": ("reason", "Attempts that failed and were made again"),
    "dropped": ("reason", "Messages of workers that were not used"),
    "refused": ("reason", "Requests refused at the door"),
    "failed": ("reason", "Requests that ended with an error"),
}
_PLAIN = {
    "finished": "Requests that ended well",
    "cancelled": "Requests cancelled by the client or an operator",
    "attempts": "Attempts made",
    "retargets": "Transfers sent to another decode worker without computing them again",
}


class RouterMetrics(Collector):
    """An `Observer` for the dispatcher, and a collector for the endpoint."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._status = cluster_pb2.GetClusterStatusResponse()
        self._queued = self._histogram("queue", "Admission to first dispatch")
        self._first_token = self._histogram("ttft", "Arrival at the door to first token there")
        self._gap = self._histogram("gap", "Between two tokens of an answer, at the door")
        self.registry.register(self)

    def queued(self, duration_s: float) -> None:
        self._queued.observe(duration_s)

    def first_token(self, duration_s: float) -> None:
        self._first_token.observe(duration_s)

    def gap(self, duration_s: float) -> None:
        self._gap.observe(duration_s)

    def publish(self, status: cluster_pb2.GetClusterStatusResponse) -> None:
        """Replace the snapshot. The message is the endpoint's from now on."""
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status
        pages = GaugeMetricFamily(
            "twolane_router_worker_pages", "Pages of a worker", labels=("worker", "state")
        )
        for worker in status.workers:
            for state in PAGE_STATES:
                count = getattr(worker.load.pages, state)
                pages.add_metric((worker.worker.worker_id, state), count)
        requests = GaugeMetricFamily(
            "twolane_router_requests", "Live requests by state", labels=("state",)
        )
        for state, count in status.requests_by_state.items():
            requests.add_metric((state,), count)
        yield pages
        yield requests
        yield from _counters(status)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"twolane_router_{name}_seconds", text, buckets=_SECONDS, registry=self.registry
        )


def _counters(status: cluster_pb2.GetClusterStatusResponse) -> Iterable[Metric]:
    for name, text in _PLAIN.items():
        yield CounterMetricFamily(
            f"twolane_router_{name}", text, value=status.counters.get(name, 0)
        )
    for name, (label, text) in _FAMILIES.items():
        family = CounterMetricFamily(f"twolane_router_{name}", text, labels=(label,))
        for key, count in status.counters.items():
            head, _, reason = key.partition(".")
            if head == name:
                family.add_metric((reason,), count)
        yield family
