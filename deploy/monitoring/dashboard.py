"""The Grafana dashboard: its panels as a table, from which `make docs` makes dashboard.json.

The queries are tested against a cluster that a Prometheus scrapes (`tests/deploy/monitoring`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_RATE = "$__rate_interval"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_QUANTILES = (0.5, 0.95, 0.99)


class Query(NamedTuple):
    """`legend` is Grafana's template of a series' name."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """`unit` is one of Grafana's: s, Bps, reqps, short, percentunit."""

    title: str
    unit: str
    queries: tuple[Query, ...]


def _rate(metric: str, by: str, labels: str = "") -> str:
    matchers = ",".join(filter(None, ('model=~"$model"', labels)))
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[{_RATE}]))"


def _quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """The quantiles of a histogram; with `by`, for each value of that label only the 95th."""
    if by:
        buckets = _rate(f"{metric}_bucket", f"le,{by}")
        return (Query(f"histogram_quantile(0.95, {buckets})", f"p95 {{{{{by}}}}}"),)
    buckets = _rate(f"{metric}_bucket", "le")
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in _QUANTILES)


def _sum(metric: str, by: str) -> str:
    model = "model_name" if metric.startswith("vllm:") else "model"
    return f'sum by ({by}) ({metric}{{{model}=~"$model"}})'


def _seen(metric: str, by: str) -> str:
    """Of a gauge that each router shows for the whole cluster."""
    return f'sum by ({by}) (max by (model,{by}) ({metric}{{model=~"$model"}}))'


def _told(metric: str, labels: str = "") -> str:
    """What a controller has told all routers."""
    return f"max by (pool) ({metric}{{{labels}}})"


def _rise(metric: str) -> str:
    return f"max by (pool) (increase({metric}[{_RATE}]))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests, at the routers": (
        Panel("Time to first token", "s", _quantiles("twolane_router_ttft_seconds")),
        Panel("Time between tokens", "s", _quantiles("twolane_router_gap_seconds")),
        Panel("Time in the queue", "s", _quantiles("twolane_router_queue_seconds")),
        Panel(
            "Requests that ended",
            "reqps",
            (Query(_rate("twolane_router_request_seconds_count", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Live requests",
            "short",
            (
                Query(_sum("vllm:num_requests_running", "model_name"), "running {{model_name}}"),
                Query(_sum("vllm:num_requests_waiting", "model_name"), "waiting {{model_name}}"),
            ),
        ),
        Panel(
            "Tokens a second",
            "short",
            (
                Query(_rate("twolane_router_generated_tokens_total", "model"), "output {{model}}"),
                Query(_rate("twolane_router_prompt_tokens_total", "model"), "prompt {{model}}"),
            ),
        ),
        Panel(
            "Refusals",
            "reqps",
            (
                Query(
                    f"sum by (reason) (rate(twolane_router_refused_total[{_RATE}]))", "{{reason}}"
                ),
            ),
        ),
        Panel(
            "Attempts that were repeated",
            "reqps",
            (
                Query(
                    f"sum by (reason) (rate(twolane_router_resumes_total[{_RATE}]))", "{{reason}}"
                ),
            ),
        ),
        Panel(
            "Workers by state",
            "short",
            (Query(_seen("twolane_router_workers", "pool,state"), "{{pool}} {{state}}"),),
        ),
    ),
    "Workers": (
        Panel("Time of a step", "s", _quantiles("twolane_step_seconds", "pool")),
        Panel("Wait for prefill", "s", _quantiles("twolane_prefill_wait_seconds", "pool")),
        Panel("Transfer of a prompt's pages", "s", _quantiles("twolane_transfer_seconds", "pool")),
        Panel("Wait for decode", "s", _quantiles("twolane_decode_wait_seconds", "pool")),
        Panel(
            "Bytes of pages sent",
            "Bps",
            (Query(_rate("twolane_transfer_bytes_total", "worker"), "{{worker}}"),),
        ),
        Panel(
            "Positions computed a second",
            "short",
            (Query(_rate("twolane_step_positions_total", "worker"), "{{worker}}"),),
        ),
        Panel(
            "Pages by state",
            "short",
            (Query(_sum("twolane_pages", "pool,state"), "{{pool}} {{state}}"),),
        ),
        Panel(
            "Share of pages in use",
            "percentunit",
            (Query('max by (pool) (vllm:kv_cache_usage_perc{model_name=~"$model"})', "{{pool}}"),),
        ),
        Panel(
            "Prompt tokens to compute",
            "short",
            (Query(_sum("twolane_prefill_queue_tokens", "worker"), "{{worker}}"),),
        ),
    ),
    "Controller": (
        Panel(
            "Workers that are desired, and alive",
            "short",
            (
                Query(_told("twolane_desired_workers"), "desired {{pool}}"),
                Query(_told("twolane_pool_workers", 'state="alive"'), "alive {{pool}}"),
            ),
        ),
        Panel(
            "Deaths, and starts that failed",
            "short",
            (
                Query(_rise("twolane_worker_deaths_total"), "deaths {{pool}}"),
                Query(_rise("twolane_failed_starts_total"), "failed starts {{pool}}"),
            ),
        ),
        Panel(
            "Autoscaler: load, and workers that it needs",
            "short",
            (
                Query(_told("twolane_scaler_load_workers"), "load {{pool}}"),
                Query(_told("twolane_scaler_need_workers"), "need {{pool}}"),
            ),
        ),
    ),
}


def dashboard_json() -> str:
    """The dashboard in Grafana's model (schema 39, Grafana 10 and later)."""
    return json.dumps(_dashboard(), indent=1) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "title": "twolane",
        "uid": "twolane",
        "tags": ["twolane"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    model = {
        "name": "model",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(twolane_router_workers, model)",
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }
    return [{"name": "datasource", "type": "datasource", "query": "prometheus"}, model]


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": y, "w": _WIDTH * _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        y += 1
        for at, panel in enumerate(panels):
            number += 1
            x, line = at % _COLUMNS * _WIDTH, at // _COLUMNS * _HEIGHT
            yield _panel(panel, number, {"x": x, "y": y + line, "w": _WIDTH, "h": _HEIGHT})
        y += -(-len(panels) // _COLUMNS) * _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for at, query in enumerate(panel.queries)
        ],
    }
