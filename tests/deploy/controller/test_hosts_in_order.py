"""Hosts that come and go, of sets of which the highest number leaves first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deploy.controller.inventories import inventory, running, seated
from tests.deploy.controller.worlds import NOW, D, P, limits, names, pool, seen, worker
from twolane.deploy.controller.actions import Drain
from twolane.deploy.controller.law import decide
from twolane.deploy.controller.reconcile import next_desired
from twolane.deploy.controller.seats import Inventory, Room

ROOMS = tuple(
    Room(host=f"{name}-{i}", seats=1, pools=(name,), ordered_set=name, number=i)
    for name in ("prefill", "decode")
    for i in range(4)
)
ORDERED: Inventory = replace(inventory(), rooms=ROOMS)
FIVE = seated(
    "prefill-0@prefill-0", "decode-0@decode-0", "decode-1@decode-1", "decode-2@decode-2"
).pinned("decode", 3)


def test_a_worker_gets_the_lowest_host_of_a_set_of_its_pool() -> None:
    desired = next_desired(seated(), ORDERED, running(seated()))
    assert {(seat.name, seat.host) for seat in desired.seats} == {
        ("prefill-0", "prefill-0"),
        ("decode-0", "decode-0"),
    }
    holed = seated("decode-0@decode-0", "decode-2@decode-2").pinned("decode", 3)
    filled = next_desired(holed, ORDERED, running(holed))
    assert "decode-1" in {seat.host for seat in filled.seats}


@pytest.mark.parametrize("rows", [{}, {"decode-2": 9}])
def test_the_worker_on_the_highest_host_goes_however_many_rows_it_has(rows: dict[str, int]) -> None:
    shrunk = next_desired(FIVE.pinned("decode", 2), ORDERED, running(FIVE, rows))
    assert [removal.name for removal in shrunk.removals] == ["decode-2"]


def test_a_flipped_worker_counts_where_it_is() -> None:
    desired = seated("decode-0@decode-0", "decode-1@decode-1", "prefill-1@prefill-1")
    assert ORDERED.n_above("decode-0", desired.seats) == 1
    assert ORDERED.n_above("decode-1", desired.seats) == 0
    assert ORDERED.n_above("prefill-1", desired.seats) == 0


def test_the_law_drains_a_worker_whose_host_can_leave() -> None:
    workers = [
        *pool(P, 1),
        *(worker(f"d{i}", D, node=f"decode-{i}", rows=9 * i, n_above=2 - i) for i in range(3)),
    ]
    assert names(decide(NOW, seen(workers, 1, 1), limits()), Drain) == ["d2"]
