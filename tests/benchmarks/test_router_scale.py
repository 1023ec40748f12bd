from benchmarks.router_scale import by_requests, by_workers


def test_every_figure_is_measured() -> None:
    found = by_workers(10)
    assert len(found) == 7
    assert all(value >= 0 for value in found.values())
    assert set(by_requests(50)) == {"tick_ms", "counts_ms"}
