"""Who gives its place: of the least priority, the tenant with the longest backlog, its youngest."""

from __future__ import annotations

from twolane.router.tenants.backlog import Backlog


def backlog(weights: dict[str, float] | None = None) -> Backlog[str]:
    return Backlog(lambda tenant: (weights or {}).get(tenant, 1.0))


def test_youngest_of_the_longest_backlog_of_the_least_priority_is_last() -> None:
    waiting = backlog()
    arrivals = [("a1", 0, "a"), ("b1", 0, "b"), ("b2", 0, "b"), ("a2", 5, "a"), ("a3", 5, "a")]
    for at, (thing, priority, tenant) in enumerate(arrivals):
        waiting.put(thing, priority, tenant, at)
    order = []
    while (last := waiting.last()) is not None:
        order.append(last)
        waiting.discard(last)
        waiting.discard(last)
    assert order[0] == "b2"
    assert set(order[1:3]) == {"a1", "b1"}
    assert order[3:] == ["a3", "a2"]
    assert len(waiting) == 0


def test_a_deferred_one_gives_its_place_before_those_that_can_be_in_time() -> None:
    waiting = backlog()
    for at, thing in enumerate(("a1", "a2", "a3", "a4")):
        waiting.put(thing, 0, "a", at)
    for thing in ("a1", "a2", "a1", "a4"):
        waiting.defer(thing, is_deferred=True)
    waiting.defer("a4", is_deferred=False)
    assert set(waiting.deferred()) == {"a1", "a2"}
    order = []
    while (last := waiting.last()) is not None:
        order.append(last)
        waiting.discard(last)
    assert order == ["a2", "a1", "a4", "a3"]


def test_backlogs_are_compared_by_weight() -> None:
    waiting = backlog({"large": 4.0})
    for at in range(6):
        waiting.put(f"l{at}", 0, "large", at)
    for at in range(2):
        waiting.put(f"s{at}", 0, "small", 10 + at)
    assert waiting.last() == "s1", "2 of weight 1 are more than 6 of weight 4"
    assert waiting.length(0, "large") == 1.5
    assert waiting.length(0, "large", more=2) == 2.0
    assert waiting.length(0, "nobody") == 0.0
    assert waiting.length(7, "small") == 0.0
