"""The launcher: runs a cluster on this machine until Ctrl-C. `twolane.deploy.up` starts it.

Its options and their help need only the extra `cli`. What serving needs is imported later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console

from twolane.cli.examples import epilog
from twolane.config import SOCKET_NAME
from twolane.deploy.cli.flags import flags, said
from twolane.deploy.cli.progress import Progress
from twolane.deploy.cli.start_failed import StartFailed, code_of
from twolane.deploy.cli.stdin import read_stdin
from twolane.deploy.errors import DeposedError, StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Launcher
from twolane.deploy.launch.process_launcher import ProcessLauncher
from twolane.deploy.process.scratch import CRASHED, LAST_WORDS
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.devices import settled
from twolane.deploy.spec.listeners import check_listeners
from twolane.deploy.spec.secret import read_secret, secret_by_hand, secret_option
from twolane.deploy.spec.settings import (
    ClusterSettings,
    RaySettings,
    RouterSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.deploy.spec.specs import ModelSpec, ProcessSpec
from twolane.engine.config import EngineConfig
from twolane.rpc.listen import join, try_listen
from twolane.testing.extras import missing_for_serving

if TYPE_CHECKING:
    from twolane.deploy.launch.supervisor import Supervisor
    from twolane.deploy.spec.topology import Topology

_COUNT = click.IntRange(min=0)


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=epilog("up"))
@click.option(
    "--topology",
    metavar="FILE_OR_NAME",
    help="What to start: a YAML file, or 1p1d, 2p2d, colocated, tp2, tp2-to-tp1, laptop. Options "
    "beside it change it.",
)
@click.option("--prefill", type=_COUNT, help="Workers that read prompts.  [default: 1]")
@click.option("--decode", type=_COUNT, help="Workers that write answers.  [default: 1]")
@click.option("--colocated", type=_COUNT, default=0, help="Workers that do both.")
@flags(
    ClusterSettings,
    RaySettings,
    RouterSettings,
    ModelSpec,
    EngineConfig,
    WorkerSettings,
    TimingSpec,
)
@secret_option("drawn, so that nobody else can join")
@click.option("--log-dir", type=click.Path(path_type=Path), help="Keep the processes' output here.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
@click.option("--print-topology", is_flag=True, help="Print the file that this amounts to.")
@click.option("--until-stdin-closes", is_flag=True, help="Stop when standard input ends, too.")
@click.pass_context
def up(context: click.Context, /, **given: Any) -> None:
    """Start a cluster on this machine and keep it up until Ctrl-C.

    Without --colocated, there is one prefill and one decode worker unless you say otherwise.
    """
    from twolane.deploy.cli.topology_options import read_options
    from twolane.deploy.launch.supervisor import Supervisor
    from twolane.deploy.spec.topology_file import write_topology
    from twolane.router.shared.address import without_secrets

    scratch: Path = context.obj
    out, log_dir = sys.stdout, (given["log_dir"] or scratch).absolute()
    tell: Callable[[Event], None] = partial(_print_json, out)
    try:
        topology = read_options(said(context))
        if given["print_topology"]:
            print(without_secrets(write_topology(topology)), end="")
            return
        cluster = _cluster(topology, given["secret_file"], scratch)
        # agents' hosts and those of another Ray have their own ports and files
        if topology.launcher != "agents" and not _is_on_another_ray(topology):
            specs: list[ProcessSpec] = [*cluster.routers(), *cluster.workers()]
            check_listeners(specs, ["twolane", "up", *sys.argv[1:]])
            _check_ports(cluster)
        _make(log_dir)
        with _prints_to(log_dir / "launcher.log") as own_log:
            if not given["as_json"]:
                tell = Progress(Console(file=out, highlight=False), cluster, log_dir)
            tell = partial(_tell_and_log, _while_read(tell, out), own_log, scratch)
            if topology.launcher == "agents":
                from twolane.deploy.cli.over_agents import up_over_agents

                secret = secret_by_hand(given["secret_file"])
                cluster = replace(cluster, secret=secret)
                up_over_agents(
                    cluster,
                    tell,
                    scratch,
                    share=topology.share_gpus,
                    until_eof=given["until_stdin_closes"],
                )
                return
            if _is_on_another_ray(topology):
                from twolane.deploy.cli.over_ray import up_over_ray

                up_over_ray(topology, cluster, tell, scratch)
                return
            launcher = _launcher(topology.launcher, cluster, log_dir, scratch)
            supervisor = Supervisor(cluster, launcher, tell, log_dir=log_dir)
            last_words = None if given["as_json"] else scratch / LAST_WORDS
            eof = given["until_stdin_closes"]
            asyncio.run(_keep_up(supervisor, tell, eof, last_words, scratch))
    except (StartError, DeposedError) as error:
        if given["as_json"]:
            _print_json(out, Event(kind=Kind.FAILED, text=str(error)))  # the log may be closed
            raise SystemExit(code_of(error)) from error
        raise StartFailed(error) from error


def _is_on_another_ray(topology: Topology) -> bool:
    """Whether the cluster goes on a Ray that runs already, instead of one that we start."""
    return bool(topology.launcher == "ray" and topology.ray.address != "local")


def _check_ports(cluster: ClusterSpec) -> None:
    """Raise if a port is taken, before anything is started. If a port is taken later, the router
    reports it."""
    router, its = cluster.router(), cluster.settings
    wanted = [
        (its.host, its.port, "--port"),
        (its.host, its.http_door or 0, "--http-port"),
        (router.bind_host, its.worker_port, "--worker-port"),
        (its.host, its.metrics_port, "--metrics-port"),
    ]
    wanted += [
        (worker.metrics_host, worker.metrics_port, "--worker-metrics-port")
        for worker in cluster.workers()
    ]
    for host, port, option in wanted:
        if why := try_listen(host, port):
            raise StartError(f"cannot listen on {join(host, port)} ({option}): {why}")


def _make(log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--log-dir {log_dir} cannot be made: {error.strerror}") from error


def _cluster(topology: Topology, secret_file: Path | None, scratch: Path) -> ClusterSpec:
    from twolane.deploy.spec.resolve import resolve

    cluster = resolve(topology)
    if topology.launcher == "agents":  # they know what GPUs there are
        return cluster
    if secret_file is not None:
        cluster = replace(cluster, secret=read_secret(secret_file))
    if _is_on_another_ray(topology):  # which knows, too
        return cluster
    cluster = settled(cluster, share=topology.share_gpus)
    # in the folder of this run, which is its user's alone, and where the client looks for it
    return replace(cluster, admin_socket=str(scratch / SOCKET_NAME))


async def _keep_up(
    supervisor: Supervisor,
    tell: Callable[[Event], None],
    until_stdin_closes: bool,
    last_words: Path | None,
    folder: Path,
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def ask_to_stop() -> None:
        if not supervisor.is_up:
            # No request is running, and a starting Ray cannot be cancelled: the front kills every
            # process that was started.
            try:
                tell(Event(kind=Kind.STOPPING))
                if last_words is not None:
                    last_words.write_text("           stopped\n")
            finally:  # whoever reads may be gone
                os._exit(0)
        if stop.is_set():  # the second Ctrl-C is impatient
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ask_to_stop)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), read_stdin, loop, ask_to_stop)
    from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door

    async with open_controller_door(ControllerDoor(supervisor, ask_to_stop, tell), folder):
        await supervisor.run(stop, hurry)


def _launcher(kind: str, cluster: ClusterSpec, log_dir: Path, scratch: Path) -> Launcher:
    if kind == "process":
        return ProcessLauncher(log_dir)
    missing = missing_for_serving(kind)  # a file may ask for it, too
    if missing is not None:
        raise StartError(missing)
    from twolane.deploy.launch.ray_launcher import RayLauncher  # Ray takes a second to import

    os.chdir(scratch)  # Ray has its workers import from where it is started, ahead of our packages
    # Not below the log directory: Ray's sockets want a short path. Ray counts no shared GPUs.
    n_actors, each = cluster.n_workers + len(cluster.routers()), cluster.devices
    n_gpus = len(each) if len(each) == len({*each}) else 0
    return RayLauncher(log_dir, scratch / "r", n_actors=n_actors, n_gpus=n_gpus)


@contextlib.contextmanager
def _prints_to(log: Path) -> Iterator[TextIO]:
    """Print our lines to the real standard output. Everything else that prints, Ray above all, is
    redirected."""
    with log.open("a") as file, contextlib.redirect_stdout(file):
        yield file


def _tell_and_log(tell: Callable[[Event], None], log: TextIO, scratch: Path, event: Event) -> None:
    """Report each event and log it. A death is also marked for the front, which then keeps the
    logs."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{when} I twolane.deploy.up: {event.to_json()}", file=log, flush=True)
    if event.kind is Kind.DIED:
        (scratch / CRASHED).touch()
    tell(event)


def _while_read(tell: Callable[[Event], None], out: TextIO) -> Callable[[Event], None]:
    """Call `tell` until the reader of `out` is gone; then stop the cluster as Ctrl-C does."""
    is_read = True

    def tell_reader(event: Event) -> None:
        nonlocal is_read
        if not is_read:
            return
        try:
            tell(event)
        except (BrokenPipeError, SystemExit):  # rich makes the second of the first
            is_read = False
            with open(os.devnull, "w") as nowhere:  # what waits in `out` goes there at our end
                os.dup2(nowhere.fileno(), out.fileno())
            signal.raise_signal(signal.SIGINT)
            with contextlib.suppress(BrokenPipeError):  # of standard error, too
                print("nobody reads the output any more: stopping", file=sys.stderr, flush=True)

    return tell_reader


def _print_json(out: TextIO, event: Event) -> None:
    print(event.to_json(), file=out, flush=True)
