"""A cluster's spec as the controller sees it: its pools and rooms, and who has a seat at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from twolane.deploy.controller.desired import Desired, Seat, Size
from twolane.deploy.controller.seats import Inventory, Pool, Room
from twolane.deploy.spec.cluster_spec import ClusterSpec, HostSpec, PoolSpec
from twolane.deploy.spec.devices import n_seats


def inventory_of(
    cluster: ClusterSpec, offered: Mapping[str, Sequence[str]] | None = None
) -> Inventory:
    """`cluster` is placed (`twolane.deploy.spec.devices`). `offered`: the GPUs of each host, those
    of this machine under the empty name; None: only those that are taken. A GPU that workers share
    has room for as many ranks as share it now."""
    hosts: Sequence[HostSpec | None] = cluster.hosts or (None,)
    return Inventory(
        pools=tuple(_pool(pool) for pool in cluster.pools),
        rooms=tuple(_room(cluster, host, offered or {}) for host in hosts),
        routers=tuple((router.name, router.host_name) for router in cluster.routers()),
        most_gpus=(cluster.scaler.budget or 0) if cluster.scaler.autoscale else 0,
        model_dir=str(cluster.model.model_dir),
    )


def first_desired(cluster: ClusterSpec) -> Desired:
    """As `cluster` is placed."""
    seats = [
        Seat(
            name=f"{pool.name}-{i}",
            pool=pool.name,
            host=pool.host_names[i] if pool.host_names else "",
            devices=pool.devices[i] if pool.devices else (),
        )
        for pool in cluster.pools
        for i in range(pool.n_workers)
    ]
    return Desired(seats=tuple(seats))


def found_desired(cluster: ClusterSpec, inventory: Inventory, found: Sequence[Seat]) -> Desired:
    """What runs, if it is not known what was desired. A pool stays as large as it is: the law or an
    operator makes it smaller. `cluster` counts if nothing runs."""
    desired = adopted(Desired(), inventory, found)
    if not desired.seats:
        return first_desired(cluster)
    for pool in inventory.pools:
        n = max(pool.n_configured, len(desired.staying(pool.name)))
        if cluster.scaler.autoscale:
            desired = replace(desired, sizes=(*desired.sizes, Size(pool=pool.name, n=n)))
        elif n > pool.n_configured:
            desired = desired.pinned(pool.name, n)
    return desired


def adopted(desired: Desired, inventory: Inventory, found: Sequence[Seat]) -> Desired:
    """Workers that run and have no seat get the one where they run: they end as others do, on
    their tickets."""
    for seat in found:
        pool = inventory.pool(seat.pool)
        if pool is None or seat.host not in inventory.hosts or desired.seat(seat.name) is not None:
            continue
        roles = () if seat.roles == pool.roles else seat.roles
        model_dir = "" if seat.model_dir == inventory.model_dir else seat.model_dir
        desired = desired.added(replace(seat, roles=roles, model_dir=model_dir))
    return desired


def _pool(pool: PoolSpec) -> Pool:
    return Pool(
        name=pool.name,
        roles=pool.roles,
        n_configured=pool.n_workers,
        n_gpus=len(pool.devices[0]) if pool.devices else 0,
    )


def _room(
    cluster: ClusterSpec, host: HostSpec | None, offered: Mapping[str, Sequence[str]]
) -> Room:
    name = "" if host is None else host.name
    made = None if host is None else host.made
    if made is None and cluster.host_sets:
        return Room(host=name)  # for routers: workers are on hosts that come and go
    if host is not None and made is not None:
        room = _room(replace(cluster, host_sets=()), replace(host, made=None), offered)
        its_set = made.set_name if made.is_ordered else ""
        return replace(room, pools=made.pools, ordered_set=its_set, number=made.number)
    if not any(pool.devices for pool in cluster.pools):
        return Room(host=name, seats=n_seats(cluster, host))
    usable = offered.get(name, ()) if host is None or host.gpus is None else host.gpus
    ranks = Counter(gpu for pool in cluster.pools for where, gpu in pool.gpus if where == name)
    gpus = dict.fromkeys([*usable, *ranks])
    return Room(host=name, gpus=tuple(gpu for gpu in gpus for _ in range(ranks[gpu] or 1)))
