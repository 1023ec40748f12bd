"""Sets of hosts that come and go, in a topology."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.parse_topology import TopologyError, parse_topology
from twolane.deploy.spec.resolve import resolve

POOLS = [{"role": "prefill", "engine": "fake"}, {"role": "decode", "engine": "fake", "workers": 2}]
SETS = [{"name": f"x-{name}", "pools": [name], "most": 3} for name in ("prefill", "decode")]
ROUTER = {"name": "x-router-0", "agent": "x-router-0.x:7210", "routers": 1}


def topology(**given: Any) -> ClusterSpec:
    said: dict[str, Any] = {"launcher": "kubernetes", "hosts": [ROUTER], "host_sets": SETS}
    return resolve(parse_topology({**said, "pools": POOLS, **given}))


def test_a_set_is_as_many_hosts_as_it_may_have_which_are_not_there_yet() -> None:
    cluster = topology()
    made = [host for host in cluster.hosts if host.made is not None]
    assert [host.name for host in made[:3]] == ["x-prefill-0", "x-prefill-1", "x-prefill-2"]
    assert {host.agent for host in made} == {""}
    assert all(host.made and host.made.is_pod for host in made)


def test_the_first_workers_are_on_the_first_hosts_of_their_sets() -> None:
    prefill, decode = settled_on(topology(), {}).pools
    assert prefill.host_names == ("x-prefill-0",)
    assert decode.host_names == ("x-decode-0", "x-decode-1")


def test_workers_of_both_pools_may_share_a_set_and_its_hosts() -> None:
    shared = {"name": "x-workers", "pools": ["prefill", "decode"], "most": 2, "seats": 2}
    prefill, decode = settled_on(topology(host_sets=[shared]), {}).pools
    assert prefill.host_names == ("x-workers-0",)
    assert decode.host_names == ("x-workers-0", "x-workers-1")


def test_sets_that_are_too_small_for_the_first_workers_are_refused() -> None:
    small = [{**SETS[0]}, {**SETS[1], "most": 1}]
    with pytest.raises(StartError, match="room for 1 of its 2 workers"):
        settled_on(topology(host_sets=small), {})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"host_sets": []}, "name the StatefulSets"),
        ({"launcher": "agents"}, "hosts do not come and go"),
        ({"launcher": "ray", "hosts": []}, "hosts do not come and go"),
        ({"host_sets": [SETS[0], SETS[0]]}, r"host_sets\[0\] has the name x-prefill already"),
        ({"host_sets": [{**SETS[0], "pools": ["draft"]}]}, "there is no pool draft"),
        ({"host_sets": SETS[:1]}, "no host set takes workers of pool decode"),
        (
            {"launcher": "ray", "hosts": [], "ray": {"address": "auto"}},
            "by which resources does Ray know a node of x-prefill",
        ),
        ({"host_sets": [{**SETS[0], "moost": 2}]}, "there is no field moost; did you mean most"),
    ],
)
def test_sets_that_cannot_be_are_refused_by_their_field(given: dict[str, Any], why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        topology(**given)
