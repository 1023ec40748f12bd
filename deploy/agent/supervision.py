"""A cluster over agents: the launcher, connected, with every worker's place, and the supervisor.
That goes on with what runs, and with what the controller before it wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.from_cluster import adopted, found_desired, inventory_of
from twolane.deploy.launch.supervisor import Supervisor
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


async def supervisor_over(
    launcher: AgentLauncher, cluster: ClusterSpec, tell: Callable[[Event], None]
) -> Supervisor:
    """`cluster` is placed. A worker that runs and was not wanted is adopted. If its
    pool or its host is not in the cluster any more, it is stopped. Raises `StartError` if that
    fails, and `DeposedError`. Whatever it raises, the launcher is then closed."""
    try:
        return await _supervisor_over(launcher, cluster, tell)
    except NotProvenError as error:
        await launcher.close()
        raise StartError(str(error)) from error
    except BaseException:
        await launcher.close()
        raise


async def _supervisor_over(
    launcher: AgentLauncher, cluster: ClusterSpec, tell: Callable[[Event], None]
) -> Supervisor:
    """Raises `NotProvenError`, and `DeposedError`."""
    inventory = inventory_of(cluster, launcher.offered)
    desired, found = launcher.desired, launcher.found()
    if desired is None:
        desired = found_desired(cluster, inventory, found)
    else:
        gone = [seat for seat in desired.seats if seat.host not in inventory.hosts]
        for host in sorted({seat.host for seat in gone}):
            there = ", ".join(seat.name for seat in gone if seat.host == host)
            text = f"it is not in the topology any more; {there} may still run there"
            tell(Event(kind=Kind.LOST, name=host, text=text))
        desired = desired.only([pool.name for pool in inventory.pools], inventory.hosts)
        desired = adopted(desired, inventory, found)
    names = {router.name for router in cluster.routers()} | {seat.name for seat in desired.seats}
    attaches = bool(names & launcher.running())
    await launcher.end_others(names, cluster.timing.stop_grace_s)
    return Supervisor(
        cluster,
        launcher,
        tell,
        hosts=launcher,
        attaches=attaches,
        inventory=inventory,
        desired=desired,
    )
