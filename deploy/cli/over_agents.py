"""`launcher: agents`: runs a cluster on several hosts through their agents until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from twolane.deploy.agent.supervision import connect, supervisor_over
from twolane.deploy.cli.stdin import read_stdin
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.deploy.launch.events import Event
from twolane.deploy.spec.cluster_spec import ClusterSpec


def up_over_agents(
    cluster: ClusterSpec,
    tell: Callable[[Event], None],
    folder: Path,
    *,
    share: bool,
    until_eof: bool,
) -> None:
    """Start the cluster, or attach to it if it runs already, supervise it, and stop it on Ctrl-C.
    The launcher's socket for operators is in `folder`.

    Raises `StartError`, `DeposedError` if another launcher has taken the cluster over, and
    `NotProvenError` if something may still run after a stop.
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
    launcher, cluster = await connect(cluster, share=share)
    supervisor = await supervisor_over(launcher, cluster, tell)
    door = ControllerDoor(supervisor, stop.set, tell)  # of which a second one does not hurry
    async with open_controller_door(door, folder):
        await supervisor.run(stop, hurry)
