"""From what a user says of a cluster to what is run: the model is found, the cores are shared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace

from deploy.hub import find_model
from deploy.spec import ClusterSpec, LimitsSpec, ModelSpec, PoolSpec, TimingSpec, http_port_above
from deploy.topology import ROLES, Pool, RouterOptions, Topology, WorkerOptions, given

_MODEL = {field.name for field in fields(ModelSpec)}
_LIMITS = {field.name for field in fields(LimitsSpec)}
_WAYS = ("transports", "checksums", "sockets", "worker_metrics_port")
_AS_SAID = ("host", "port", "worker_port", "metrics_port", "generation_config")


def resolve(topology: Topology, *, cores: int | None = None) -> ClusterSpec:
    """GPUs are not placed yet (`deploy.devices`). Raises `StartError` if there is no such model.

    `cores` are shared among all ranks of all workers; those that this process may use.
    """
    name, model_dir = find_model(topology.model)
    cores = cores or len(os.sched_getaffinity(0))
    options = [topology.options_of(pool) for pool in topology.pools]
    n_ranks = sum(
        pool.workers * (its.tensor_parallel or 1)
        for pool, its in zip(topology.pools, options, strict=True)
    )
    threads = max(1, cores // max(1, n_ranks))
    pools = tuple(
        _pool(pool, its, _model(its, name=name, model_dir=str(model_dir), threads=threads))
        for pool, its in zip(topology.pools, options, strict=True)
    )
    pools = tuple(_metrics_side_by_side(pools, topology))
    router = given(topology.router)
    cluster = ClusterSpec(
        model=pools[0].model,
        pools=pools,
        timing=TimingSpec(**given(topology.timing)),
        limits=LimitsSpec(**{k: v for k, v in router.items() if k in _LIMITS}),
        **{k: v for k, v in router.items() if k in _AS_SAID},
    )
    return replace(cluster, http_port=_http_port(topology.router, cluster.port))


def _metrics_side_by_side(pools: Iterable[PoolSpec], topology: Topology) -> Iterator[PoolSpec]:
    """A base port that is given for all pools is the first one's: the others follow on."""
    base = topology.workers.worker_metrics_port
    for pool, said in zip(pools, topology.pools, strict=True):
        if base and said.worker_metrics_port is None:
            yield replace(pool, worker_metrics_port=base)
            base += pool.n_workers
        else:
            yield pool


def _http_port(router: RouterOptions, port: int) -> int | None:
    """None: no HTTP door."""
    if router.no_http:
        return None
    return http_port_above(port) if router.http_port is None else router.http_port


def _pool(pool: Pool, options: WorkerOptions, model: ModelSpec) -> PoolSpec:
    of_all = given(options)
    return PoolSpec(
        name=pool.title,
        roles=ROLES[pool.role],
        n_workers=pool.workers,
        model=model,
        limits=LimitsSpec(**{k: v for k, v in of_all.items() if k in _LIMITS}),
        **{k: v for k, v in of_all.items() if k in _WAYS},
    )


def _model(options: WorkerOptions, *, name: str, model_dir: str, threads: int) -> ModelSpec:
    said = given(options)
    facts = {k: v for k, v in said.items() if k in _MODEL}
    facts = {"threads": threads, "n_pages": said.get("pages"), **facts}
    return ModelSpec(model_dir=model_dir, name=name, **facts)
