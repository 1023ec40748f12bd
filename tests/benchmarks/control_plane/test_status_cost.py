"""The benchmark of looks at a large cluster, on a small one."""

from __future__ import annotations

from benchmarks.control_plane.status_cost import measure


def test_each_look_is_measured() -> None:
    figures = measure(n_workers=4, n_requests=6, n_times=1)
    assert figures.keys() == {"status", "top", "requests", "json", "console"}
    assert all(its["least_ms"] >= 0 for its in figures.values())
