"""Ten times the capacity, from a client in C, for a short while."""

import pytest

from benchmarks.cluster.flood import find_h2load
from benchmarks.cluster.overload import run

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(find_h2load() is None, reason="needs h2load (nghttp2-client)"),
]


def test_cluster_at_ten_times_its_capacity_serves_the_highest_and_refuses_with_details() -> None:
    found = run(60.0, beside_s=10.0)
    assert found.refusals_ms(), "somebody was refused"
    assert not found.failures(), found.figures()
