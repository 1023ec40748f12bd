"""What a controller takes for desired when nobody has saved it: what runs, or else the topology."""

from __future__ import annotations

from dataclasses import replace

from tests.deploy.launch.controlled import CLUSTER
from twolane.deploy.controller.desired import Desired, Pin, Seat, Size
from twolane.deploy.launch.from_cluster import adopted, first_desired, found_desired, inventory_of

INVENTORY = inventory_of(CLUSTER)


def running(
    name: str, host: str = "a", pool: str = "decode", model_dir: str = INVENTORY.model_dir
) -> Seat:
    """As its host tells it: with the roles and the model that its process was started with."""
    return Seat(name=name, pool=pool, host=host, roles=(pool,), model_dir=model_dir)


FOUND = [running("decode-0"), running("decode-4", "b"), running("prefill-1", "b", "prefill")]


def test_workers_that_run_have_their_seats_and_a_larger_pool_is_pinned() -> None:
    desired = found_desired(CLUSTER, INVENTORY, FOUND)
    assert desired.seats == tuple(replace(its, roles=(), model_dir="") for its in FOUND)
    assert desired.pins == (Pin(pool="decode", n=2),)


def test_the_law_begins_with_the_sizes_that_run() -> None:
    sized_by_law = replace(CLUSTER, scaler=replace(CLUSTER.scaler, autoscale=True))
    desired = found_desired(sized_by_law, INVENTORY, FOUND)
    assert desired.sizes == (Size(pool="prefill", n=1), Size(pool="decode", n=2))
    assert desired.pins == ()


def test_the_topology_counts_if_nothing_runs() -> None:
    assert found_desired(CLUSTER, INVENTORY, []) == first_desired(CLUSTER)


def test_a_worker_keeps_roles_and_a_model_that_are_not_its_pools() -> None:
    both = replace(running("decode-0", model_dir="/other"), roles=("prefill", "decode"))
    assert adopted(Desired(), INVENTORY, [both]).seats == (both,)


def test_a_worker_that_has_a_seat_keeps_it() -> None:
    first = first_desired(CLUSTER)
    assert adopted(first, INVENTORY, [running("decode-0", "b", model_dir="/other")]) == first


def test_a_worker_without_a_pool_or_a_host_here_is_not_adopted() -> None:
    first = first_desired(CLUSTER)
    elsewhere = [running("x-0", pool="x"), running("decode-1", "z")]
    assert adopted(first, INVENTORY, elsewhere) == first
