"""The Prometheus metrics of one router, in a registry of its own.

Durations and tokens are counted as they occur; states and counters are read from the router at each
scrape.
"""

from __future__ import annotations

from collections import Counter as TallyCounter
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twolane.router.doors import vllm_names
from twolane.router.doors.controller_figures import ControllerFigures, with_counts
from twolane.router.doors.token_figures import TokenFigures
from twolane.router.doors.vllm_names import Live
from twolane.v1 import cluster_pb2

PAGE_STATES = ("quarantined", "used", "pinned", "cached", "free")
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
# counters of the status, by the part before the first dot: metric name, label, help
_FAMILIES = {
    "resumes": ("reason", "Attempts that failed and were repeated"),
    "dropped": ("reason", "Messages from workers that were not used"),
    "refused": ("reason", "Requests refused, or evicted from the queue, with this error"),
    "unauthenticated": ("method", "Calls without valid credentials"),
    "denied": ("method", "Calls that the caller's role is not allowed to make"),
    "failed": ("reason", "Requests that ended with an error"),
}
# Shown as 0 before they occur: `rate` does not see a counter that begins at 1.
_EXPECTED = {
    "resumes": ("decode_worker_lost", "prefill_worker_lost", "preempted", "router_lost", "stalled"),
}
# fields of a tenant's status
_OF_TENANTS = {
    "requests": "Requests of a tenant that were admitted",
    "refused": "Requests that a quota of their tenant refused",
    "prompt_tokens": "Prompt tokens that workers received, by tenant",
    "output_tokens": "Output tokens, by tenant",
}
_PLAIN = {
    "finished": "Requests that ended without error",
    "cancelled": "Requests cancelled by the client or an operator",
    "attempts": "Attempts made",
    "revision_changes": "Answers continued by another revision of the model, as theirs was lost",
    "retargets": "Transfers repeated to another decode worker without recomputing the pages",
}


class RouterMetrics(Collector):
    """A `DispatchObserver` that records metrics, and their collector."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._look: Callable[[], cluster_pb2.GetClusterStatusResponse] | None = None
        self._queued = self._histogram("queue", "Admission to first dispatch")
        self._first_token = self._histogram("ttft", "Arrival at the door to first token there")
        self._request = self._histogram("request", "Arrival to the end of the answer", "outcome")
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of admitted prompts")
        self._of_tokens = TokenFigures(_SECONDS)
        self._live: Callable[[], Mapping[str, Live]] = dict
        self._of_controller = ControllerFigures()
        self.registry.register(self)

    def watch(
        self,
        look: Callable[[], cluster_pb2.GetClusterStatusResponse],
        live: Callable[[], Mapping[str, Live]] = dict,
    ) -> None:
        """Also show the workers, states and counters that `look` returns at each scrape, and the
        requests of each model that `live` returns."""
        self._look, self._live = look, live

    def admitted(self, model: str, n_prompt: int) -> None:
        self._prompt_tokens.labels(model).inc(n_prompt)

    def queued(self, model: str, duration_s: float) -> None:
        self._queued.labels(model).observe(duration_s)

    def first_token(self, model: str, duration_s: float) -> None:
        self._first_token.labels(model).observe(duration_s)
        self._of_tokens.token(model, None)

    def gap(self, model: str, duration_s: float) -> None:
        self._of_tokens.token(model, duration_s)

    def ended(self, model: str, outcome: str, duration_s: float) -> None:
        self._request.labels(model, outcome).observe(duration_s)

    def collect(self) -> Iterable[Metric]:
        of_tokens = list(self._of_tokens.collect())
        yield from of_tokens
        yield from vllm_names.renamed((*of_tokens, *self._counted()))
        if self._look is None:
            return
        status = self._look()
        yield from vllm_names.gauges(status, self._live())
        yield from _workers(status)
        requests = GaugeMetricFamily(
            "twolane_router_requests", "Live requests by state", labels=("state",)
        )
        for state, count in status.requests_by_state.items():
            requests.add_metric((state,), count)
        yield requests
        yield from _counters(status)
        yield from _tenants(status)
        yield from _store(status)
        yield from self._of_controller.collect(status)

    def _counted(self) -> Iterable[Metric]:
        """What the library's own classes count."""
        for own in (self._first_token, self._request, self._queued, self._prompt_tokens):
            yield from own.collect()

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"twolane_router_{name}_seconds",
            text,
            ("model", *labels),
            buckets=_SECONDS,
            registry=self.registry,
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"twolane_router_{name}", text, ("model",), registry=self.registry)


def _workers(status: cluster_pb2.GetClusterStatusResponse) -> Iterable[Metric]:
    pages = GaugeMetricFamily(
        "twolane_router_worker_pages", "Pages of a worker", labels=("worker", "pool", "state")
    )
    states = GaugeMetricFamily(
        "twolane_router_workers", "Workers by state", labels=("model", "pool", "state")
    )
    counts: TallyCounter[tuple[str, str, str]] = TallyCounter()
    for worker in status.workers:
        counts[worker.model, worker.pool, worker.state] += 1
        for state in PAGE_STATES:
            count = getattr(worker.load.pages, state)
            pages.add_metric((worker.worker.worker_id, worker.pool, state), count)
    for labels, n in counts.items():
        states.add_metric(labels, n)
    yield pages
    yield states


def _counters(status: cluster_pb2.GetClusterStatusResponse) -> Iterable[Metric]:
    for name, text in _PLAIN.items():
        yield CounterMetricFamily(
            f"twolane_router_{name}", text, value=status.counters.get(name, 0)
        )
    for name, (label, text) in _FAMILIES.items():
        family = CounterMetricFamily(f"twolane_router_{name}", text, labels=(label,))
        yield with_counts(family, name, status.counters, _EXPECTED.get(name, ()))


def _tenants(status: cluster_pb2.GetClusterStatusResponse) -> Iterable[Metric]:
    """Tenants' metrics, labelled with hashes of their names; operators see both in the status."""
    live = GaugeMetricFamily(
        "twolane_router_tenant_live_requests",
        "Waiting and running requests of a tenant",
        labels=("tenant",),
    )
    for tenant in status.tenants:
        live.add_metric((tenant.label,), tenant.live)
    yield live
    for name, text in _OF_TENANTS.items():
        family = CounterMetricFamily(f"twolane_router_tenant_{name}", text, labels=("tenant",))
        for tenant in status.tenants:
            family.add_metric((tenant.label,), getattr(tenant, name))
        yield family


def _store(status: cluster_pb2.GetClusterStatusResponse) -> Iterable[Metric]:
    """The shared store's metrics, if there is one."""
    if status.HasField("store"):
        up = GaugeMetricFamily("twolane_store_up", "Whether the shared store answers")
        up.add_metric((), int(status.store.up))
        yield up
        text = "Writes to the shared store dropped because the queue was full"
        yield CounterMetricFamily("twolane_store_dropped", text, value=status.store.dropped)
