"""A cluster on the hosts of its agents: the launcher, connected, and every worker's place."""

from __future__ import annotations

from dataclasses import replace

from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.errors import StartError
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.devices import settled_on

WORKER_PORT = 7201  # of a router; fixed, so that workers find a restarted router there again


async def connect(cluster: ClusterSpec, *, share: bool) -> tuple[AgentLauncher, ClusterSpec]:
    """Connect to the agents of its hosts, and give each worker its GPUs. Raises `StartError` if
    none answers, if one is silent whose GPUs are not known, or if the workers do not fit."""
    if not cluster.settings.worker_port:
        cluster = replace(cluster, settings=replace(cluster.settings, worker_port=WORKER_PORT))
    launcher = await AgentLauncher.connected(cluster.hosts, cluster.credentials)
    try:
        for host in cluster.hosts:
            if host.name not in launcher.offered and host.gpus is None and host.seats is None:
                raise StartError(
                    f"no agent answers at {host.agent}, and nobody knows what {host.name} has: "
                    "name its gpus or seats to do without it"
                )
        return launcher, settled_on(cluster, launcher.offered, share=share)
    except StartError:
        await launcher.close()
        raise
