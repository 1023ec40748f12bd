"""`launcher: agents`: runs a cluster on several hosts through their agents until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.cli.stdin import read_stdin
from twolane.deploy.errors import StartError
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.supervisor import Supervisor
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.devices import settled_on

WORKER_PORT = 7201  # of a router, which workers find again when another launcher has started it


def up_over_agents(
    cluster: ClusterSpec,
    tell: Callable[[Event], None],
    folder: Path,
    *,
    share: bool,
    until_eof: bool,
) -> None:
    """Start the cluster, or attach to it if its processes run already; keep it running; stop it
    when asked. The launcher's socket for operators is in `folder`.

    Raises `StartError`, and `DeposedError` if another launcher has taken the cluster over.
    """
    asyncio.run(_up(cluster, tell, folder, share=share, until_eof=until_eof))


async def _up(
    cluster: ClusterSpec,
    tell: Callable[[Event], None],
    folder: Path,
    *,
    share: bool,
    until_eof: bool,
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def ask_to_stop() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ask_to_stop)
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), read_stdin, loop, ask_to_stop)
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
        cluster = settled_on(cluster, launcher.offered, share=share)
    except StartError:
        await launcher.close()
        raise
    names = {
        *(router.name for router in cluster.routers()),
        *(worker.name for worker in cluster.workers("")),
    }
    attaches = bool(names & launcher.running())
    await launcher.end_others(names, cluster.timing.stop_grace_s)
    supervisor = Supervisor(cluster, launcher, tell, hosts=launcher, attaches=attaches)
    async with open_controller_door(ControllerDoor(supervisor, ask_to_stop, tell), folder):
        running = asyncio.create_task(supervisor.run(stop, hurry))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not running.done() and not supervisor.is_up:
            tell(Event(kind=Kind.STOPPING))
            running.cancel()  # what it has started ends; what it has found goes on
            await asyncio.wait([running])
            return
        await running
