"""The supervisor of a cluster over agents: it goes on with what runs, and with what the controller
before it wanted."""

from __future__ import annotations

from collections.abc import Callable

from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.errors import NotProvenError, StartError
from twolane.deploy.launch.events import Event
from twolane.deploy.launch.from_cluster import adopted, found_desired, inventory_of
from twolane.deploy.launch.supervisor import Supervisor
from twolane.deploy.spec.cluster_spec import ClusterSpec


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
