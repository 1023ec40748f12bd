"""What routers show Prometheus of their cluster's controller, as it told them last.

All routers show the same: take the `max`. While no controller is heard, only its absence is shown;
where there never was one, as with processes that are started by hand, nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from twolane.v1 import cluster_pb2

# counters of a controller, by the part before the first dot: metric, label, help
_COUNTERS = {
    "failed_starts": ("twolane_failed_starts", "pool", "Starts of workers that have failed"),
    "deaths": ("twolane_worker_deaths", "pool", "Workers that have died and were not to end"),
    "keda": ("twolane_keda_questions", "answer", "Questions of KEDA for numbers of pods"),
    "kubernetes": ("twolane_kubernetes_calls", "result", "Changes of sizes, and calls that failed"),
}
_BY_POOL = (
    "failed_starts",
    "deaths",
)  # shown as 0 before they occur, so that rate() sees the first


def with_counts(
    family: CounterMetricFamily, head: str, counters: Mapping[str, int], expected: Iterable[str]
) -> CounterMetricFamily:
    """The family of one label, with the counters that are named `head.value`. Those that are
    expected are 0 before they occur."""
    counts = dict.fromkeys(expected, 0)
    for key, count in counters.items():
        of, _, value = key.partition(".")
        if of == head:
            counts[value] = count
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family


class ControllerFigures:
    """Of one router. Call `collect` at each scrape."""

    def __init__(self) -> None:
        self._there_was_one = False

    def collect(self, status: cluster_pb2.GetClusterStatusResponse) -> Iterable[Metric]:
        self._there_was_one = self._there_was_one or bool(status.controllers)
        if not self._there_was_one:
            return
        text = "Controllers that are heard; there is to be one"
        yield GaugeMetricFamily("twolane_controllers", text, value=len(status.controllers))
        if status.controllers:
            yield from _pools(status)
            yield from _counters(status)
        if status.HasField("scaler"):
            yield from _scaler(status.scaler)


def _pools(status: cluster_pb2.GetClusterStatusResponse) -> Iterator[Metric]:
    desired = GaugeMetricFamily(
        "twolane_desired_workers", "Workers that a pool is to have", labels=("pool",)
    )
    present = GaugeMetricFamily(
        "twolane_pool_workers", "Workers of a pool, as its controller sees it",
        labels=("pool", "state"),
    )  # fmt: skip
    for pool in status.pools:
        desired.add_metric((pool.pool,), pool.workers)
        for state in ("alive", "starting", "draining"):
            present.add_metric((pool.pool, state), getattr(pool, state))
    yield desired
    yield present


def _counters(status: cluster_pb2.GetClusterStatusResponse) -> Iterator[Metric]:
    pools = [pool.pool for pool in status.pools]
    for head, (name, label, text) in _COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=(label,))
        expected = pools if head in _BY_POOL else ()
        yield with_counts(family, head, status.controller_counters, expected)


def _scaler(scaler: cluster_pb2.ScalerStatus) -> Iterator[Metric]:
    text = "Decisions of the autoscaler"
    yield CounterMetricFamily("twolane_scaler_decisions", text, value=scaler.decisions)
    text = "GPUs, or seats, that workers may hold"
    yield GaugeMetricFamily("twolane_scaler_budget", text, value=scaler.budget_gpus)
    yield GaugeMetricFamily("twolane_scaler_held", "Those that they hold", value=scaler.held_gpus)
    if scaler.has_attainment:
        text = "Share of the last five minutes' requests within the SLO"
        yield GaugeMetricFamily("twolane_scaler_attainment", text, value=scaler.attainment)
    figures = {"load": "What comes now, in workers", "need": "Workers that a pool needs"}
    for name, text in figures.items():
        family = GaugeMetricFamily(f"twolane_scaler_{name}_workers", text, labels=("pool",))
        for pool in scaler.pools:
            family.add_metric((pool.pool,), getattr(pool, name))
        yield family
