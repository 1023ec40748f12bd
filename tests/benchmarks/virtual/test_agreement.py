"""When the fluid model and the virtual cluster agree."""

from __future__ import annotations

import pytest

from benchmarks.virtual.agreement import differences
from twolane.deploy.virtual_cluster.compare import Result


def played(missed: float, hours: float) -> Result:
    return Result(
        missed=missed,
        missed_with_hand_over=missed,
        late_first=0.0,
        late_gaps=missed,
        worker_hours=hours,
        most_workers=12,
        actions={},
        sizes=(),
    )


@pytest.mark.parametrize(
    ("missed", "own_hours", "points", "percent", "agrees"),
    [
        ((0.014, 0.0158), (7.9, 8.3), 0.49, 1.23, True),
        ((0.015, 0.0153), (8.0, 8.0), 0.515, 0.0, False),
        ((0.01, 0.01), (8.3, 8.6), 0.0, 5.33, False),
        ((0.01, 0.01), (7.5, 7.7), 0.0, 5.26, False),
    ],
)
def test_misses_are_compared_at_the_same_sizes_and_gpu_hours_with_the_models_own_law(
    missed: tuple[float, ...],
    own_hours: tuple[float, ...],
    points: float,
    percent: float,
    agrees: bool,
) -> None:
    alike = [played(share, 8.0) for share in missed]  # as many hours as the cluster, always
    own = [played(0.5, hours) for hours in own_hours]  # which misses what the instants make of it
    assert differences(played(0.01, 8.0), alike, own) == {
        "missed_differs_by_points": pytest.approx(points),
        "gpu_hours_differ_by_percent": percent,
        "agrees": agrees,
    }
