"""What a controller takes for desired when nobody knows."""

from __future__ import annotations

from dataclasses import replace

from tests.deploy.launch.controlled import CLUSTER
from twolane.deploy.controller.desired import Desired, Pin, Seat, Size
from twolane.deploy.launch.from_cluster import adopted, first_desired, found_desired, inventory_of

HOUSE = inventory_of(CLUSTER)
MODEL = HOUSE.model_dir


def seat(name: str, host: str = "a", pool: str = "decode", model_dir: str = MODEL) -> Seat:
    return Seat(name=name, pool=pool, host=host, roles=(pool,), model_dir=model_dir)


def test_what_runs_is_desired_in_the_number_that_runs() -> None:
    found = [seat("decode-0"), seat("decode-4", "b"), seat("prefill-1", "b", "prefill")]
    desired = found_desired(CLUSTER, HOUSE, found)
    assert desired.seats == tuple(replace(its, roles=(), model_dir="") for its in found)
    assert desired.pins == (Pin(pool="decode", n=2),)
    law = replace(CLUSTER, scaler=replace(CLUSTER.scaler, autoscale=True))
    desired = found_desired(law, HOUSE, found)
    assert desired.sizes == (Size(pool="prefill", n=1), Size(pool="decode", n=2))
    assert desired.pins == ()


def test_the_topology_counts_if_nothing_runs() -> None:
    assert found_desired(CLUSTER, HOUSE, []) == first_desired(CLUSTER)


def test_a_worker_keeps_roles_and_a_model_that_are_not_its_pools() -> None:
    both = replace(seat("decode-0", model_dir="/other"), roles=("prefill", "decode"))
    assert adopted(Desired(), HOUSE, [both]).seats == (both,)


def test_a_worker_without_a_pool_or_a_host_here_is_not_adopted() -> None:
    first = first_desired(CLUSTER)
    assert adopted(first, HOUSE, [seat("x-0", pool="x"), seat("decode-1", "z")]) == first
