"""A second router that shows the same cluster changes no figure of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.monitoring.prometheus import needs_prometheus
from twolane.deploy.monitoring.dashboard import ROWS

# Gauges that every router shows of the whole cluster, with the labels of a series.
OF_THE_CLUSTER = {
    "twolane_router_workers": 'model="m",pool="p",state="alive"',
    "vllm:kv_cache_usage_perc": 'model_name="m",pool="p"',
    "twolane_desired_workers": 'pool="p"',
    "twolane_pool_workers": 'pool="p",state="alive"',
    "twolane_scaler_load_workers": 'pool="p"',
    "twolane_scaler_need_workers": 'pool="p"',
}
SHOWN = {
    query.expression.replace("$model", ".*"): metric
    for panels in ROWS.values()
    for panel in panels
    for query in panel.queries
    for metric in OF_THE_CLUSTER
    if f"{metric}{{" in query.expression
}


def test_each_of_these_gauges_is_on_the_dashboard() -> None:
    assert {*SHOWN.values()} == OF_THE_CLUSTER.keys()


@needs_prometheus
@pytest.mark.parametrize("expression", SHOWN, ids=SHOWN.values())
def test_a_panel_counts_the_cluster_once(expression: str, tmp_path: Path) -> None:
    metric = SHOWN[expression]
    series = [
        {"series": f'{metric}{{{OF_THE_CLUSTER[metric]},instance="h:{n}"}}', "values": "3x5"}
        for n in (1, 2)
    ]
    value = f"max({expression}) == 3 and count({expression}) == 1"
    case = {
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [
            {"expr": value, "eval_time": "3m", "exp_samples": [{"labels": "{}", "value": 3}]}
        ],
    }
    file = tmp_path / "panel.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    command = ["promtool", "test", "rules", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
