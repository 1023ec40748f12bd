"""Faults that a virtual cluster meets on its own, and the launcher that mends them. Both run until
cancelled."""

from __future__ import annotations

import asyncio

from twolane.deploy.virtual_cluster.cluster import VirtualCluster

_LOOK_EVERY_S = 1.0
_MOST_APART_S, _MOST_DOWN_S = 0.1, 0.5
_RESETS = 0.3  # their share of all faults; the others are kills


async def kill_and_reset(cluster: VirtualCluster) -> None:
    """Kill a worker or reset its streams, now and then. A killed worker's end is proven, and it is
    started again, as a launcher does."""
    draw = cluster.random
    while True:
        await asyncio.sleep(draw.uniform(0.0, _MOST_APART_S))
        name = draw.choice(sorted(cluster.lives))
        if draw.random() < _RESETS:
            cluster.reset_streams(name)
            continue
        epoch = await cluster.kill(name)
        await asyncio.sleep(draw.uniform(0.0, _MOST_DOWN_S))
        _start_again(cluster, name, epoch)


async def replace_hung(cluster: VirtualCluster) -> None:
    """Every second, as a launcher does: kill each worker of which the status says that a step is
    late, prove its end, and start another in its place."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        for told in cluster.status().workers:
            name, load = told.worker.worker_id, told.load
            here = cluster.lives.get(name)
            is_same = here is not None and here.worker.context.epoch == told.worker.epoch
            if is_same and load.step_age_s > load.step_bound_s > 0:
                _start_again(cluster, name, await cluster.kill(name))


def _start_again(cluster: VirtualCluster, name: str, gone_epoch: int) -> None:
    cluster.router.operations.report_gone(gone_epoch)
    cluster.start(name, name.rstrip("0123456789"))
