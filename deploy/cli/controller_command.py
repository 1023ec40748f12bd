"""`python -m twolane.deploy controller`: the controller of a cluster over agents, as a service that
others restart, such as a Deployment of Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twolane.deploy.agent.supervision import connect, supervisor_over
from twolane.deploy.cli.start_failed import NOT_PROVEN, StartFailed
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.process.child import log_to_stderr
from twolane.deploy.process.scratch import make_scratch, remove_stale_scratch
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.host_sets import KUBERNETES, KubernetesOptions
from twolane.deploy.spec.secret import secret_by_hand, secret_option

if TYPE_CHECKING:
    from twolane.deploy.kubernetes.hosts import KubernetesHosts

log = logging.getLogger(__name__)

_AGAIN_S = 2.0  # until the next try to start the cluster
_HEARTBEAT_S = 1.0


@click.command()
@click.option(
    "--topology", "file", required=True, metavar="FILE", help="The cluster: its hosts, its pools."
)
@click.option(
    "--heartbeat-file",
    type=click.Path(path_type=Path),
    help="Written each second, for probes.  [default: none]",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help="There while the cluster is under control, for probes.  [default: none]",
)
@secret_option("~/.twolane/secret, made where there is none")
def controller(
    *,
    file: str,
    heartbeat_file: Path | None,
    ready_file: Path | None,
    secret_file: Path | None,
) -> None:
    """Control a cluster over agents until SIGTERM. The cluster keeps running without it.

    It waits for agents that do not answer yet, and tries again when the cluster does not start. A
    second controller takes the cluster over, and the first one ends.
    """
    from twolane.deploy.spec.resolve import resolve
    from twolane.deploy.spec.topology_file import find_topology, read_topology

    try:
        topology = read_topology(find_topology(file))
        if topology.launcher not in ("agents", KUBERNETES):
            raise StartError(
                f"{file}: launcher is {topology.launcher}; it must be agents or kubernetes"
            )
        cluster = resolve(topology)
        secret = secret_by_hand(secret_file)
        log_to_stderr(cluster.log_level)
        service = Controller(
            replace(cluster, secret=secret),
            share=topology.share_gpus,
            heartbeat_file=heartbeat_file,
            ready_file=ready_file,
            kubernetes=topology.kubernetes if topology.launcher == KUBERNETES else None,
        )
        asyncio.run(service.run())
    except (StartError, DeposedError) as error:
        raise StartFailed(error) from error
    except NotProvenError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(NOT_PROVEN) from error


class Controller:
    """Starts the cluster, or attaches to it if it runs, and supervises it."""

    def __init__(
        self,
        cluster: ClusterSpec,
        *,
        share: bool,
        heartbeat_file: Path | None = None,
        ready_file: Path | None = None,
        kubernetes: KubernetesOptions | None = None,
    ) -> None:
        self._cluster = cluster
        self._share = share
        self._heartbeat_file = heartbeat_file
        self._ready_file = ready_file
        self._kubernetes = kubernetes
        self._ends, self._hurry = asyncio.Event(), asyncio.Event()  # of the cluster

    async def run(self) -> None:
        """Return at SIGTERM or SIGINT, or when an operator has stopped the cluster. Raises
        `DeposedError`, and `NotProvenError` if something of it may still run then."""
        leave, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave.set)
        tasks = [
            asyncio.create_task(work)
            for work in (leave.wait(), self._beat(), self._until_it_starts())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                await task

    async def _beat(self) -> None:
        while self._heartbeat_file is not None:
            self._heartbeat_file.write_text(f"{time.monotonic_ns()}\n")
            await asyncio.sleep(_HEARTBEAT_S)
        await asyncio.Event().wait()

    async def _until_it_starts(self) -> None:
        while not self._ends.is_set():
            try:
                await self._hold()
                return
            except StartError as error:
                log.error("%s", error)
            await asyncio.sleep(_AGAIN_S)

    async def _hold(self) -> None:
        """Run the cluster. Raises `StartError` and `DeposedError`."""
        async with contextlib.AsyncExitStack() as stack:
            self._is_ready(False)
            stack.callback(self._is_ready, False)
            cluster, hosts = self._cluster, None
            if self._kubernetes is not None:
                hosts = await stack.enter_async_context(self._pods(self._kubernetes))
                cluster = await hosts.located(cluster)
            launcher, cluster = await connect(cluster, share=self._share)
            supervisor = await supervisor_over(launcher, cluster, self._tell)
            if hosts is not None:
                await stack.enter_async_context(hosts.kept(launcher.made, cluster))
            remove_stale_scratch()
            folder = make_scratch()
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            async with open_controller_door(
                ControllerDoor(supervisor, self._ends.set, self._tell), folder
            ):
                await supervisor.run(self._ends, self._hurry)

    def _pods(self, options: KubernetesOptions) -> KubernetesHosts:
        """Raises `StartError`."""
        if importlib.util.find_spec("httpx2") is None:
            raise StartError("launcher kubernetes needs httpx2: pip install 'twolane[kubernetes]'")
        from twolane.deploy.kubernetes.hosts import KubernetesHosts, account_of

        return KubernetesHosts(options, account_of(options), self._broken)

    def _broken(self, error: BaseException) -> None:
        log.error("pods are not kept any more", exc_info=error)
        os._exit(1)  # Kubernetes starts the next controller, which adopts the running processes

    def _tell(self, event: Event) -> None:
        log.info("%s", event.to_json())
        if event.kind is Kind.READY:
            self._is_ready(True)

    def _is_ready(self, it_is: bool) -> None:
        if self._ready_file is None:
            return
        if it_is:
            self._ready_file.touch()
        else:
            self._ready_file.unlink(missing_ok=True)
