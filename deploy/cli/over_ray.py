"""`launcher: ray` with an address: runs a cluster on a Ray that is running already."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.settings import RaySettings
from twolane.testing.extras import missing_for_serving

if TYPE_CHECKING:
    from twolane.deploy.spec.topology import Topology

WORKER_PORT = 7201  # of a router; fixed, so that workers find a restarted router there again


def up_over_ray(
    topology: Topology, cluster: ClusterSpec, tell: Callable[[Event], None], scratch: Path
) -> None:
    """Start the cluster, or attach to it if it runs already. Returns once it serves; it runs until
    `twolane down`. Raises `StartError`."""
    missing = missing_for_serving("ray")
    if missing is not None:
        raise StartError(missing)
    from twolane.deploy.ray_cluster.lifecycle import start

    os.chdir(scratch)  # Ray's workers import first from the folder in which Ray was started
    settings = cluster.settings
    if not settings.worker_port:
        settings = replace(settings, worker_port=WORKER_PORT)
    cluster = replace(cluster, settings=settings)
    ray = RaySettings(**topology.ray.model_dump())
    start(ray, cluster, tell, share=topology.share_gpus)


def down_over_ray(address: str, name: str) -> list[str]:
    """Stop the cluster of that name and remove all its actors. Returns the hosts that do not
    answer, where processes may still run. Raises `StartError`."""
    missing = missing_for_serving("ray")
    if missing is not None:
        raise StartError(missing)
    from twolane.deploy.ray_cluster.lifecycle import end

    return end(address, name)
