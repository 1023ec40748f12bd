"""Ten times the capacity, from a client in C, for a short while."""

import pytest

from benchmarks.flood import find_h2load
from benchmarks.overload import run

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(find_h2load() is None, reason="needs h2load (nghttp2-client)"),
]


def test_cluster_at_ten_times_its_capacity_serves_the_highest_and_refuses_with_details() -> None:
    found = run(20.0, beside_s=10.0)
    assert found.goodput_share >= 0.85, found.figures()
    probes = found.during()
    assert not [probe for probe in found.probes if probe.code == "CANCELLED"]
    assert all(probe.has_details for probe in found.probes)
    assert {probe.code for probe in probes if probe.priority == 100} == {"OK"}
    assert found.refusals_ms(), "somebody was refused"
    assert found.rss_mb[-1] < 1.25 * found.rss_mb[0]
    again_s = found.normal_again_s()
    assert again_s is not None
    assert again_s < 2.0, "the machine may be busy"
