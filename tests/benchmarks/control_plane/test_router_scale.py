import pytest

from benchmarks.control_plane.router_load import LoadedRouter
from benchmarks.control_plane.router_scale import by_requests, by_workers
from twolane.router.dispatch.request_clock import RequestClock
from twolane.router.requests.request import Request


def test_every_figure_is_measured() -> None:
    found = by_workers(10)
    assert len(found) == 7
    assert all(value >= 0 for value in found.values())
    assert set(by_requests(50, n_ticks=3)) == {
        "tick_ms", "tick_p99_ms", "late", "stalled", "counts_ms"
    }  # fmt: skip


def test_requests_in_flight_meet_deadlines_and_stall_while_ticks_are_measured() -> None:
    found = by_requests(900, n_ticks=200)
    assert found["late"] >= 3
    assert found["stalled"] >= 1


def test_a_loaded_router_looks_at_requests_that_are_due_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[object] = []
    real = RequestClock._look

    def look(self: RequestClock, request: Request, now: float) -> None:
        looks.append(request)
        real(self, request, now)

    load = LoadedRouter(600)
    monkeypatch.setattr(RequestClock, "_look", look)
    for _ in range(40):
        load.tick_ms()
        load.turn_over()
    assert 580 <= len(load.rig.dispatcher.board.requests) <= 620
    assert 0 < len(looks) < 40, "less than one a tick, while one comes and goes"
