"""Turns a topology into a cluster spec: finds the model and divides the cores among the ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.deploy.spec.declared_options import settings
from twolane.deploy.spec.host_sets import KUBERNETES
from twolane.deploy.spec.hub import find_model
from twolane.deploy.spec.settings import RouterSettings, ScalerSettings, TimingSpec, WorkerSettings
from twolane.deploy.spec.tls import tls_files
from twolane.deploy.spec.topology import ROLES, Topology, given


def resolve(topology: Topology, *, cores: int | None = None) -> ClusterSpec:
    """The spec of a topology, without GPUs: `twolane.deploy.spec.devices` assigns these. Raises
    `StartError` if the model or a host does not exist.

    `cores`: the cores of each host, by default those that this process may use. They are divided
    among all ranks there.
    """
    if topology.launcher == "agents" and not topology.hosts:
        raise StartError("launcher is agents: name the hosts that have one in a topology (hosts)")
    sets = tuple(its.spec(is_pods=topology.launcher == KUBERNETES) for its in topology.host_sets)
    name, model_dir = find_model(topology.model)
    cores = cores or len(os.sched_getaffinity(0))
    options = [given(topology.options_of(pool)) for pool in topology.pools]
    n_ranks = sum(
        pool.workers * its.get("tensor_parallel", 1)
        for pool, its in zip(topology.pools, options, strict=True)
    )
    per_host = math.ceil(n_ranks / max(1, len(topology.hosts)))
    threads = max(1, cores // max(1, per_host))
    scaler = ScalerSettings(**settings(ScalerSettings, given(topology.scaler)))
    pools = tuple(
        PoolSpec(
            name=pool.title,
            roles=ROLES[pool.role],
            n_workers=pool.workers,
            model=topology.model_of(pool, model_dir=model_dir, name=name, threads=threads),
            settings=WorkerSettings(**settings(WorkerSettings, its)),
        )
        for pool, its in zip(topology.pools, options, strict=True)
    )
    pools = _flipping(pools, scaler)
    return ClusterSpec(
        model=pools[0].model,
        pools=tuple(_metrics_side_by_side(pools, topology)),
        settings=_router_settings(topology),
        bind_host=topology.bind_host,
        advertise_host=topology.advertise_host,
        ports=topology.ports,
        hosts=(
            *(host.spec() for host in topology.hosts),
            *(host for its in sets for host in its.hosts()),
        ),
        host_sets=sets,
        log_level=topology.log_level,
        timing=TimingSpec(**settings(TimingSpec, given(topology.timing))),
        tls=tls_files(topology.tls_ca, topology.tls_cert, topology.tls_key),
        insecure=topology.insecure,
        scaler=scaler,
        seats=topology.seats,
    )


def _flipping(pools: tuple[PoolSpec, ...], scaler: ScalerSettings) -> tuple[PoolSpec, ...]:
    """The pools whose workers may flip, if that is wanted: they have one engine and equal options,
    so that a worker of one is as good as one of the other. Raises `StartError` if it was asked for
    and cannot be."""
    is_wanted = scaler.autoscale if scaler.flips is None else scaler.flips
    first = pools[0]
    are_alike = all((p.model, p.settings) == (first.model, first.settings) for p in pools)
    if scaler.flips and not are_alike:
        raise StartError("flips: workers can only flip between pools with equal options")
    return tuple(replace(pool, flips=is_wanted and are_alike) for pool in pools)


def _router_settings(topology: Topology) -> RouterSettings:
    """The router's settings with absolute paths, as it is started in another directory."""
    said = RouterSettings(**settings(RouterSettings, given(topology.router)))
    if said.keys is None:
        return said
    return replace(said, keys=str(Path(said.keys).expanduser().absolute()))


def _metrics_side_by_side(pools: Iterable[PoolSpec], topology: Topology) -> Iterator[PoolSpec]:
    """Give each pool its own metrics ports: a base port set for all pools is the first pool's, and
    the other pools follow it."""
    base = topology.workers.worker_metrics_port
    for pool, said in zip(pools, topology.pools, strict=True):
        if base and said.worker_metrics_port is None:
            yield replace(pool, settings=replace(pool.settings, worker_metrics_port=base))
            base += pool.n_workers
        else:
            yield pool
