"""Tenants share a line by tokens and weight; nobody saves turns up, nobody is shut out."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from twolane.router.tenants.fair_line import IN_TIME_EACH, FairLine

Thing = tuple[str, int]  # tenant, arrival
WEIGHTS = {"double": 2.0, "half": 0.5}


class Line:
    """A line of things, each of a cost of its own."""

    def __init__(self) -> None:
        self.line: FairLine[Thing] = FairLine(lambda tenant: WEIGHTS.get(tenant, 1.0))
        self.costs: dict[Thing, float] = {}
        self._arrivals = itertools.count(1)

    def put(self, tenant: str, n: int = 1, cost: float = 100) -> None:
        for _ in range(n):
            thing = tenant, next(self._arrivals)
            self.costs[thing] = cost
            self.line.put(thing, tenant, thing[1], cost)

    def take(self) -> Thing:
        first = self.line.first()
        assert first is not None
        self.line.pay(first)
        self.line.discard(first)
        return first

    def taken(self, n: int) -> list[str]:
        return [self.take()[0] for _ in range(n)]


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    line = Line()
    line.put("a", 5)
    assert [line.take()[1] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert line.line.first() is None
    assert len(line.line) == 0


def test_deferred_ones_leave_last_but_one_of_them_in_eight_turns() -> None:
    line = Line()
    line.put("a", 11)
    for arrival in (1, 2, 1):
        line.line.defer(("a", arrival), is_deferred=True)
    line.line.check_integrity()
    assert line.line.n_ahead("a") == 11, "a new one may be deferred, too"
    assert IN_TIME_EACH == 7
    assert [line.take()[1] for _ in range(11)] == [3, 4, 5, 6, 7, 8, 9, 1, 10, 11, 2]
    assert len(line.line) == 0


def test_one_that_is_deferred_no_more_has_its_place_again() -> None:
    line = Line()
    line.put("a", 4)
    for arrival, is_deferred in ((1, True), (2, True), (1, False), (1, False), (4, False)):
        line.line.defer(("a", arrival), is_deferred=is_deferred)
        line.line.check_integrity()
    assert set(line.line.deferred()) == {("a", 2)}
    assert [line.take()[1] for _ in range(4)] == [1, 3, 4, 2]


def test_deferred_ones_change_nothing_between_tenants() -> None:
    line = Line()
    for tenant in ("red", "blue", "double"):
        line.put(tenant, 40)
    for arrival in range(1, 21):
        line.line.defer(("red", arrival), is_deferred=True)
    assert Counter(line.taken(80)) == pytest.approx({"red": 20, "blue": 20, "double": 40}, abs=1)


def test_single_request_passes_ten_thousand_of_another_tenant() -> None:
    line = Line()
    line.put("many", 10_000)
    line.taken(37)
    line.put("one")
    assert line.line.n_ahead("one") == pytest.approx(2, abs=1)
    assert "one" in line.taken(2)


def test_tenants_get_tokens_by_their_weights() -> None:
    line = Line()
    line.put("double", 3_000, cost=10)
    line.put("half", 3_000, cost=40)
    line.put("plain", 3_000, cost=25)
    tokens: Counter[str] = Counter()
    for _ in range(2_000):
        thing = line.take()
        tokens[thing[0]] += int(line.costs[thing])
    total = tokens.total()
    assert tokens["double"] / total == pytest.approx(2 / 3.5, rel=0.02)
    assert tokens["plain"] / total == pytest.approx(1 / 3.5, rel=0.02)
    assert tokens["half"] / total == pytest.approx(0.5 / 3.5, rel=0.02)


def test_nobody_saves_turns_up_by_not_asking() -> None:
    line = Line()
    line.put("busy", 1_000)
    line.taken(500)
    line.put("late", 500)
    shares = Counter(line.taken(100))
    assert abs(shares["late"] - shares["busy"]) <= 1


def test_nobody_gets_a_turn_more_by_leaving_the_line_for_a_moment() -> None:
    line = Line()
    line.put("steady", 1_000)
    served = Counter[str]()
    line.put("comes and goes")
    for _ in range(200):
        tenant = line.take()[0]
        served[tenant] += 1
        if tenant != "steady":
            line.put(tenant)
    assert abs(served["steady"] - served["comes and goes"]) <= 1


def test_what_was_cancelled_costs_nothing() -> None:
    line = Line()
    line.put("a", 100, cost=1_000)
    for thing in list(line.line)[:90]:
        line.line.discard(thing)
    line.put("b", 10, cost=1_000)
    assert Counter(line.taken(20)) == {"a": 10, "b": 10}
    line.line.discard(("a", 1))  # may be absent


def test_estimate_that_was_too_long_is_given_back() -> None:
    """Both take as much in the end, one of them by requests that ask for ten times as much."""
    line = Line()
    line.put("asks for much", 1_000, cost=1_000)
    line.put("asks for little", 1_000, cost=100)
    served: Counter[str] = Counter()
    for _ in range(400):
        tenant, _ = line.take()
        served[tenant] += 1
        if tenant == "asks for much":
            line.line.settle(tenant, -900)
    assert served["asks for much"] == pytest.approx(200, abs=10)


def test_answer_that_was_longer_than_its_estimate_is_paid_for_also_by_one_who_has_left() -> None:
    line = Line()
    line.put("a", 1)
    line.put("b", 50)
    line.taken(1)
    line.line.settle("a", 1_000)
    line.put("a", 50)
    shares = Counter(line.taken(12))
    assert shares["b"] >= 10, shares


def schedules() -> Iterator[tuple[int, random.Random]]:
    for seed in range(30):
        yield seed, random.Random(seed)


@pytest.mark.parametrize(("seed", "rng"), list(schedules()))
def test_any_two_that_wait_all_the_time_differ_by_no_more_than_their_largest_requests(
    seed: int, rng: random.Random
) -> None:
    """The bound of start-time fair queueing, under arrivals, cancels, other tenants at random."""
    line = Line()
    most = 0.0
    tokens: Counter[str] = Counter()
    pair = ("double", "plain")
    for tenant in pair:
        line.put(tenant, 30, cost=rng.randint(1, 500))
    most = max(line.costs.values())
    for _ in range(500):
        for tenant in pair:  # never without anything to do
            if sum(thing[0] == tenant for thing in line.line) < 5:
                cost = rng.randint(1, 500)
                line.put(tenant, 10, cost=cost)
                most = max(most, cost)
        if rng.random() < 0.5:
            line.put(rng.choice("xyz"), rng.randint(1, 4), cost=rng.randint(1, 500))
        if rng.random() < 0.3:
            line.line.defer(rng.choice(list(line.line)), is_deferred=rng.random() < 0.7)
        if rng.random() < 0.3:
            line.line.discard(
                rng.choice([thing for thing in line.line if thing[0] in "xyz"] or [("x", 0)])
            )
        thing = line.take()
        tokens[thing[0]] += int(line.costs[thing])
        difference = abs(tokens["double"] / 2 - tokens["plain"] / 1)
        assert difference <= most / 2 + most, (difference, most)
        line.line.check_integrity()


@pytest.mark.parametrize("deferred", [0.0, 0.3])
def test_estimated_place_in_the_line_is_the_one_that_it_turns_out_to_be(deferred: float) -> None:
    """Or behind it, if others are deferred."""
    rng = random.Random(3)
    for _ in range(40):
        line = Line()
        sizes = {f"t{n}": rng.choice([1, 3, 10, 100]) for n in range(rng.randint(1, 30))}
        for tenant, n in sizes.items():
            line.put(tenant, n)
        for thing in list(line.line):
            if rng.random() < deferred:
                line.line.defer(thing, is_deferred=True)
        line.taken(sum(sizes.values()) // 3)
        asking = rng.choice([*sizes, "new"])
        estimate = line.line.n_ahead(asking)
        line.put(asking)
        mine = max(thing for thing in line.line if thing[0] == asking)
        n_before = 0
        while line.take() != mine:
            n_before += 1
        assert estimate > n_before - len(sizes) - 2
        if not deferred:
            assert estimate == pytest.approx(n_before, abs=len(sizes) + 1)


def test_debts_of_tenants_that_come_once_are_forgotten() -> None:
    line = Line()
    line.put("busy", 5_000)
    for n in range(5_000):
        line.put(f"once {n}")
        line.taken(2)
        line.put("busy", 1)
    assert len(line.line._ahead) < 200
    assert len(line.line._groups) < 40
