"""What a router shows of the controller that it hears."""

from __future__ import annotations

from prometheus_client.core import Metric

from twolane.router.doors.controller_figures import ControllerFigures
from twolane.v1 import cluster_pb2


def samples(metrics: list[Metric]) -> dict[str, float]:
    """By name and labels: `twolane_pool_workers{decode,alive}`."""
    return {
        sample.name + f"{{{','.join(sample.labels.values())}}}" * bool(sample.labels): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def heard(**counters: int) -> cluster_pb2.GetClusterStatusResponse:
    pool = cluster_pb2.PoolStatus(pool="decode", workers=3, alive=2, starting=1)
    return cluster_pb2.GetClusterStatusResponse(
        controllers=[cluster_pb2.ControllerStatus(controller_id="c")],
        pools=[pool],
        controller_counters=counters,
    )


def test_a_controllers_wishes_and_counters_are_shown_by_pool() -> None:
    found = samples([*ControllerFigures().collect(heard(**{"failed_starts.decode": 4}))])
    assert found["twolane_controllers"] == 1
    assert found["twolane_desired_workers{decode}"] == 3
    assert found["twolane_pool_workers{decode,alive}"] == 2
    assert found["twolane_pool_workers{decode,starting}"] == 1
    assert found["twolane_failed_starts_total{decode}"] == 4
    assert found["twolane_worker_deaths_total{decode}"] == 0, "before it occurs, too"


def test_who_scales_is_counted_by_what_came_of_it() -> None:
    status = heard(**{"keda.answered": 5, "keda.refused": 1, "kubernetes.failed": 2})
    found = samples([*ControllerFigures().collect(status)])
    assert found["twolane_keda_questions_total{answered}"] == 5
    assert found["twolane_keda_questions_total{refused}"] == 1
    assert found["twolane_kubernetes_calls_total{failed}"] == 2


def test_the_autoscaler_is_shown_where_there_is_one() -> None:
    status = heard()
    assert not [
        name for name in samples([*ControllerFigures().collect(status)]) if "scaler" in name
    ]
    status.scaler.decisions, status.scaler.budget_gpus, status.scaler.held_gpus = 7, 4, 3
    status.scaler.pools.add(pool="decode", need=2, load=1.5)
    found = samples([*ControllerFigures().collect(status)])
    assert found["twolane_scaler_decisions_total"] == 7
    assert (found["twolane_scaler_held"], found["twolane_scaler_budget"]) == (3, 4)
    assert found["twolane_scaler_load_workers{decode}"] == 1.5
    assert found["twolane_scaler_need_workers{decode}"] == 2
    assert "twolane_scaler_attainment" not in found


def test_a_controller_that_is_gone_is_a_zero_and_one_that_never_was_is_nothing() -> None:
    nobody = cluster_pb2.GetClusterStatusResponse()
    figures = ControllerFigures()
    assert samples([*figures.collect(nobody)]) == {}
    list(figures.collect(heard()))
    assert samples([*figures.collect(nobody)]) == {"twolane_controllers": 0}
