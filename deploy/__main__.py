"""`python -m twolane.deploy router | worker | agent | controller` runs one process of a cluster;
`down` and `drain` end some.
`twolane.deploy.up` runs a whole cluster."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from twolane.config import SOCKET_NAME
from twolane.deploy.cli.flags import flags, said
from twolane.deploy.cli.start_failed import StartFailed
from twolane.deploy.errors import StartError
from twolane.deploy.process.child import run_process
from twolane.deploy.process.imports import import_worker
from twolane.deploy.process.parent_death import die_with_parent
from twolane.deploy.process.scratch import make_scratch, remove_stale_scratch
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.listeners import check_listeners
from twolane.deploy.spec.secret import secret_by_hand, secret_option
from twolane.deploy.spec.settings import (
    DECODE,
    PREFILL,
    ClusterSettings,
    RouterSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.deploy.spec.spec_json import from_json
from twolane.deploy.spec.specs import ModelSpec, RouterSpec, WorkerSpec
from twolane.engine.config import EngineConfig
from twolane.rpc.listen import MAX_PORT

_PORT = click.IntRange(0, MAX_PORT)
_ID_HELP = "Unique in the cluster.  [default: of host and process]"
_ROUTER_HELP = "Announce to these: a router's worker port.  [default: 127.0.0.1:7201]"
_WORKER_PORT = 7201
CommandT = TypeVar("CommandT", bound=Callable[..., Any])
SpecT = TypeVar("SpecT", RouterSpec, WorkerSpec)


def _of_a_process(command: CommandT) -> CommandT:
    """Add the options that a router and a worker share to a command."""
    file = click.option(
        "--topology",
        metavar="FILE_OR_NAME",
        help="What to start, as for `twolane up`; a worker's has one pool. Options beside it "
        "change it.",
    )
    hidden = (  # for launchers
        # JSON on standard input; other options are ignored then
        click.option("--spec-from-stdin", is_flag=True, hidden=True),
        click.option("--ready-fd", type=int, hidden=True),
        click.option("--parent-pid", type=int, hidden=True),
    )
    of_all = flags(TimingSpec, ClusterSettings, leave_out=("launcher", "share_gpus", "seats"))
    secret = secret_option("~/.twolane/secret, made where there is none")
    for option in (*hidden, secret, of_all, file):
        command = option(command)
    return command


class _Commands(click.Group):
    """Imports these commands only when they are asked for: a router or a worker starts a sixth of a
    second sooner without."""

    _LATE = ("agent", "controller", "down", "drain")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._LATE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._LATE:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"twolane.deploy.cli.{cmd_name}_command")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=_Commands)
def main() -> None:
    """Start one process of a cluster."""


@main.command()
@click.option("--router-id", help=_ID_HELP)
@click.option(
    "--admin-socket",
    metavar="PATH",
    help="Where operators come in.  [default: in a new temporary folder]",
)
@flags(RouterSettings, worker_port=_WORKER_PORT)
@_of_a_process
@click.pass_context
def router(context: click.Context, /, **given: Any) -> None:
    """Run one router."""

    def spec() -> RouterSpec:
        router_id = given["router_id"] or _own_id("router")
        cluster = _cluster(said(context), role="both")
        return replace(
            cluster.router(router_id),
            secret=secret_by_hand(given["secret_file"]),
            admin_socket=given["admin_socket"] or _own_socket(),
            shares_ports=cluster.settings.processes > 1,
        )

    _run(RouterSpec, spec, given)


@main.command()
@click.option("--worker-id", help=_ID_HELP)
@click.option("--role", type=click.Choice([PREFILL, DECODE, "both"]), default="both")
@click.option("--router", "routers", multiple=True, metavar="HOST:PORT", help=_ROUTER_HELP)
@click.option("--port", "own_port", type=_PORT, default=0)
@click.option(
    "--metrics-port",
    "own_metrics_port",
    type=_PORT,
    default=0,
    help="Of its metrics.  [default: any]",
)
@click.option("--imports-engine", type=click.Choice(["cpu", "cuda"]), hidden=True)  # for launchers
@flags(ModelSpec, EngineConfig, WorkerSettings, leave_out=("worker_metrics_port",))
@_of_a_process
@click.pass_context
def worker(context: click.Context, /, **given: Any) -> None:
    """Run one worker, with one role or both."""

    def spec() -> WorkerSpec:
        cluster = _cluster(said(context), role=given["role"])
        if len(cluster.pools) > 1:
            names = ", ".join(pool.name for pool in cluster.pools)
            raise click.UsageError(f"a worker is of one pool; the topology has {names}")
        worker_id = given["worker_id"] or _own_id("worker")
        return replace(
            cluster.workers("")[0],
            worker_id=worker_id,
            tls=cluster.tls_of(worker_id),
            pool=cluster.pools[0].name if given["topology"] else "",
            secret=secret_by_hand(given["secret_file"]),
            routers=given["routers"] or (f"127.0.0.1:{_WORKER_PORT}",),
            port=given["own_port"],
            metrics_host="",
            metrics_port=given["own_metrics_port"],
        )

    _run(WorkerSpec, spec, given)


def _run(kind: type[SpecT], made: Callable[[], SpecT], given: dict[str, Any]) -> None:
    if given["parent_pid"]:
        die_with_parent(given["parent_pid"])
    if given.get("imports_engine"):
        import_worker(given["imports_engine"])
    try:
        if given["spec_from_stdin"]:
            spec = from_json(kind, sys.stdin.read())
        else:
            spec = made()
            check_listeners([spec], ["python", "-m", "twolane.deploy", *sys.argv[1:]])
    except StartError as error:
        raise StartFailed(error) from error
    run_process(spec, given["ready_fd"])


def _cluster(options: dict[str, Any], *, role: str) -> ClusterSpec:
    """The cluster that the options describe. Without a topology file: one worker of that role."""
    from twolane.deploy.cli.topology_options import read_options
    from twolane.deploy.spec.resolve import resolve

    topology = read_options(options, role=role)
    cluster = resolve(topology)
    if topology.router.worker_port is not None:
        return cluster
    return replace(cluster, settings=replace(cluster.settings, worker_port=_WORKER_PORT))


def _own_id(kind: str) -> str:
    """An id from the host's name and the process id: worker-node7-4711."""
    return f"{kind}-{socket.gethostname()}-{os.getpid()}"


def _own_socket() -> str:
    """A socket path in a new temporary folder, where `AdminClient` looks for it."""
    remove_stale_scratch()
    scratch = make_scratch()
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return str(scratch / SOCKET_NAME)


if __name__ == "__main__":
    main(prog_name="python -m twolane.deploy")
