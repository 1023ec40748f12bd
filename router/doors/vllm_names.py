"""The same figures under the names that vLLM has for them, which dashboards and autoscalers read.

    vllm:num_requests_running, …_waiting        live requests, by model
    vllm:kv_cache_usage_perc                    0 to 1, by model and pool; also gpu_cache_usage_perc
    vllm:time_to_first_token_seconds, …         histograms of the router, with other names

`gpu_cache_usage_perc` and `time_per_output_token_seconds` are older names. The label is
`model_name`, as in vLLM; there are no labels `engine` and `finished_reason`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from twolane.v1 import cluster_pb2

_RENAMED = {
    "twolane_router_ttft_seconds": ("time_to_first_token_seconds",),
    "twolane_router_gap_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "twolane_router_request_seconds": ("e2e_request_latency_seconds",),
    "twolane_router_queue_seconds": ("request_queue_time_seconds",),
    "twolane_router_prompt_tokens": ("prompt_tokens",),
    "twolane_router_generated_tokens": ("generation_tokens",),
}
_ANSWERED = "finished"  # vLLM counts no others


class Live(NamedTuple):
    """The live requests of one model."""

    waiting: int
    running: int


def renamed(metrics: Iterable[Metric]) -> Iterable[Metric]:
    """Those of `metrics` that vLLM has, and the number of answered requests."""
    for metric in metrics:
        for name in _RENAMED.get(metric.name, ()):
            alias = Metric(f"vllm:{name}", metric.documentation, metric.type)
            alias.samples = [
                _relabelled(sample, f"vllm:{name}{sample.name.removeprefix(metric.name)}")
                for sample in metric.samples
                if sample.labels.get("outcome", _ANSWERED) == _ANSWERED
            ]
            yield alias
        if metric.name == "twolane_router_request_seconds":
            success = Metric("vllm:request_success", "Requests that ended without error", "counter")
            success.samples = [
                _relabelled(sample, "vllm:request_success_total")
                for sample in metric.samples
                if sample.name.endswith("_count") and sample.labels["outcome"] == _ANSWERED
            ]
            yield success


def gauges(
    status: cluster_pb2.GetClusterStatusResponse, live: Mapping[str, Live]
) -> Iterable[Metric]:
    """Of every model that has workers or requests."""
    waiting = GaugeMetricFamily(
        "vllm:num_requests_waiting", "Requests that no worker has", labels=("model_name",)
    )
    running = GaugeMetricFamily(
        "vllm:num_requests_running", "Requests that a worker has", labels=("model_name",)
    )
    used: dict[tuple[str, str], int] = defaultdict(int)
    n_pages: dict[tuple[str, str], int] = defaultdict(int)
    for worker in status.workers:
        if worker.state != "gone":
            pages, key = worker.load.pages, (worker.model, worker.pool)
            used[key] += pages.used + pages.pinned + pages.quarantined
            n_pages[key] += sum(
                (pages.used, pages.pinned, pages.quarantined, pages.cached, pages.free)
            )
    for model in sorted({*live, *(model for model, _ in n_pages)}):
        of_model = live.get(model, Live(0, 0))
        waiting.add_metric((model,), of_model.waiting)
        running.add_metric((model,), of_model.running)
    yield waiting
    yield running
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        usage = GaugeMetricFamily(
            f"vllm:{name}", "Share of a pool's pages in use", labels=("model_name", "pool")
        )
        for key, n in n_pages.items():
            usage.add_metric(key, used[key] / n if n else 0.0)
        yield usage


def _relabelled(sample: Sample, name: str) -> Sample:
    kept = {key: value for key, value in sample.labels.items() if key not in ("model", "outcome")}
    return Sample(name, {"model_name": sample.labels["model"], **kept}, sample.value)
