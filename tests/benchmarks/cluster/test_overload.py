from benchmarks.cluster.flood import MIXED, Kind, message
from benchmarks.cluster.overload import Overload
from benchmarks.cluster.overload_probe import Probe


def probe(at_s: float, priority: int, code: str = "OK", took_s: float = 0.1) -> Probe:
    return Probe(at_s, priority, code, took_s, 0.05 if code == "OK" else None, False, True)


def overload(*probes: Probe) -> Overload:
    return Overload(
        capacity_per_s=12.0,
        beside_per_s=10.0,
        goodput_per_s=9.0,
        offered_per_s=120.0,
        for_s=10.0,
        probes=probes,
        flood_ended_s=100.0,
        rss_mb=[80.0] * 50,
        counters={"finished": 90},
    )


def test_goodput_is_told_against_what_a_flooded_bystander_leaves() -> None:
    found = overload(
        probe(90.0, 100),
        probe(91.0, 0, "RESOURCE_EXHAUSTED", 0.02),
        probe(92.0, -10, "RESOURCE_EXHAUSTED", 0.04),
        probe(100.2, 0),
    )
    figures = found.figures()
    assert figures["goodput_share"] == 0.9
    assert (figures["refusals_probed"], figures["refusal_p99_ms"]) == (2, 40.0)
    assert figures["probes_by_priority"]["100"]["codes"] == {"OK": 1}
    assert len(figures["router_rss_mb"]) <= 26


def test_normal_again_is_from_when_on_every_probe_is_answered_soon() -> None:
    slow = overload(probe(100.5, 0), probe(101.0, 0, took_s=3.0), probe(101.5, 0), probe(102.0, 0))
    assert slow.normal_again_s() == 1.5
    assert overload(probe(99.0, 0), probe(101.0, 100)).normal_again_s() is None


def test_flood_is_mixed_of_all_priorities_and_deadlines() -> None:
    assert len(set(MIXED)) == 12
    assert message(Kind(priority=-10)).priority == -10
