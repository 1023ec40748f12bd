"""The launcher: runs a cluster on this machine until Ctrl-C. `twolane.deploy.up` starts it.

Its options and their help need only the extra `cli`. What serving needs is imported later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console

from twolane.cli.examples import epilog
from twolane.cli.full_disk import OnFullDisks
from twolane.config import SOCKET_NAME
from twolane.deploy.cli.flags import flags, said
from twolane.deploy.cli.own_stdout import take_over
from twolane.deploy.cli.progress import Progress
from twolane.deploy.cli.start_failed import NOT_PROVEN, StartFailed, code_of
from twolane.deploy.cli.stdin import read_stdin
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Launcher
from twolane.deploy.launch.process_launcher import ProcessLauncher
from twolane.deploy.process.scratch import CRASHED, LAST_WORDS
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.devices import check_gpus, settled, visible_devices
from twolane.deploy.spec.listeners import check_listeners, check_tls_is_used
from twolane.deploy.spec.secret import read_secret, secret_by_hand, secret_option
from twolane.deploy.spec.settings import (
    MOST_WORKERS,
    ClusterSettings,
    RaySettings,
    RouterSettings,
    ScalerSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.deploy.spec.specs import ModelSpec, ProcessSpec
from twolane.engine.config import EngineConfig
from twolane.errors import UnavailableError
from twolane.rpc.listen import IN_USE, MAX_PORT, join, try_listen
from twolane.testing.extras import missing_for_serving

if TYPE_CHECKING:
    from twolane.deploy.launch.supervisor import Supervisor
    from twolane.deploy.spec.topology import Topology

_MOST_PREPARED = 16  # workers whose processes are started in one go; a stop is not heard meanwhile
_STORE_S = 2.0  # to connect
_COUNT = click.IntRange(0, MOST_WORKERS)


@click.command(
    cls=OnFullDisks,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=epilog("up"),
)
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
    ScalerSettings,
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
        if topology.launcher == "kubernetes":
            raise StartError(
                "launcher is kubernetes: its controller is `python -m twolane.deploy controller`, "
                "in a pod"
            )
        cluster = _cluster(topology, given["secret_file"], scratch)
        # not for agents or another Ray: their hosts' ports and files cannot be checked here
        if topology.launcher != "agents" and not _is_on_another_ray(topology):
            specs: list[ProcessSpec] = [*cluster.routers(), *cluster.workers()]
            check_listeners(specs, ["twolane", "up", *sys.argv[1:]])
            check_tls_is_used(specs)
            check_gpus(cluster)
            _check_keys(cluster)
            _check_ports(cluster)
            _look_for_store(cluster)
        _make(log_dir)
        with _prints_to(log_dir / "launcher.log") as own_log:
            if topology.launcher == "ray":
                out = take_over(out, others=own_log.fileno())
                tell = partial(_print_json, out)
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
            eof = given["until_stdin_closes"]
            last_words = None if given["as_json"] else scratch / LAST_WORDS
            asyncio.run(_bring_up(launcher, cluster, tell, log_dir, eof, last_words, scratch))
    except NotProvenError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(NOT_PROVEN) from error
    except (StartError, DeposedError, click.UsageError) as error:
        if given["as_json"]:
            _print_json(out, Event(kind=Kind.FAILED, text=str(error)))  # the log may be closed
            raise SystemExit(code_of(error)) from error
        if isinstance(error, click.UsageError):
            raise
        raise StartFailed(error) from error


def _is_on_another_ray(topology: Topology) -> bool:
    """Whether the cluster runs on an existing Ray, not on one that we start."""
    return bool(topology.launcher == "ray" and topology.ray.address != "local")


def _check_ports(cluster: ClusterSpec) -> None:
    """Raise `StartError` if a port is in use, or two options name one, before any process starts.
    The router reports a port that is taken later."""
    router, its = cluster.router(), cluster.settings
    wanted = [
        (its.host, its.port, "--port"),
        (its.host, its.http_door or 0, "--http-port"),
        (router.bind_host, its.worker_port, "--worker-port"),
        (its.host, its.metrics_port, "--metrics-port"),
        (router.bind_host, its.admin_port or 0, "--admin-port"),
    ]
    for (host, port, option), (other_host, other_port, other) in combinations(wanted, 2):
        if port and (host, port) == (other_host, other_port):
            raise StartError(f"{option} and {other} are both {port}: give them different ports")
    wanted += [
        (worker.metrics_host or worker.bind_host, worker.metrics_port, "--worker-metrics-port")
        for worker in cluster.workers()
    ]
    for host, port, option in wanted:
        if why := try_listen(host, port):
            if why == IN_USE:
                another = port + 100 if port + 100 <= MAX_PORT else port - 100
                why += f"; take another, like {option} {another}, or 0 for any free one"
                if option == "--port" and _is_ours(join(host, port)):
                    why += ". A cluster of yours is there: `twolane down` ends it"
            raise StartError(f"cannot listen on {join(host, port)} ({option}): {why}")


def _look_for_store(cluster: ClusterSpec) -> None:
    """Say so if the store does not listen: clusters serve without one, and use it once it does."""
    if cluster.settings.store is None:
        return
    from twolane.router.shared.address import parse_address

    address, why = parse_address(cluster.settings.store), ""
    for place in address.hosts:
        try:
            socket.create_connection(place, _STORE_S).close()
            return
        except OSError as error:
            why = str(error)
    text = f"Warning: {address} is not reached ({why}): until it is, routers share nothing"
    click.echo(text, err=True)


def _is_ours(endpoint: str) -> bool:
    """Whether clients of a cluster of this user on this machine connect there."""
    from twolane.admin import socket_of  # gRPC takes a while to import

    try:
        return socket_of(endpoint) is not None
    except UnavailableError:  # several are
        return True


def _check_keys(cluster: ClusterSpec) -> None:
    """Raise `StartError` if the file of API keys cannot be used, before any process starts."""
    if cluster.settings.keys is None:
        return
    from twolane.security.keys import KeyFileError, read_keys

    try:
        read_keys(Path(cluster.settings.keys))
    except KeyFileError as error:
        raise StartError(f"--keys {error}") from error


def _make(log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--log-dir {log_dir} cannot be made: {error.strerror}") from error


def _cluster(topology: Topology, secret_file: Path | None, scratch: Path) -> ClusterSpec:
    from twolane.deploy.spec.resolve import resolve

    cluster = resolve(topology)
    if topology.launcher == "agents":  # they know their GPUs
        return cluster
    if secret_file is not None:
        cluster = replace(cluster, secret=read_secret(secret_file))
    if _is_on_another_ray(topology):  # so does Ray
        return cluster
    cluster = settled(cluster, share=topology.share_gpus)
    # in this run's folder, which only its user can read, and where clients look for it
    return replace(cluster, admin_socket=str(scratch / SOCKET_NAME))


async def _bring_up(
    launcher: Launcher,
    cluster: ClusterSpec,
    tell: Callable[[Event], None],
    log_dir: Path,
    until_stdin_closes: bool,
    last_words: Path | None,
    folder: Path,
) -> None:
    """Start the workers' processes first: they import their engines while the rest is imported
    here, and while routers start."""
    offered: tuple[str, ...] = ()  # a Ray that we start knows its GPUs itself
    if isinstance(launcher, ProcessLauncher):
        for spec in cluster.workers()[:_MOST_PREPARED]:
            launcher.prepare(spec)
        offered = visible_devices() if cluster.devices else ()
    from twolane.deploy.launch.from_cluster import inventory_of
    from twolane.deploy.launch.supervisor import Supervisor

    inventory = inventory_of(cluster, {"": offered})
    supervisor = Supervisor(cluster, launcher, tell, log_dir=log_dir, inventory=inventory)
    await _keep_up(supervisor, tell, until_stdin_closes, last_words, folder)


async def _keep_up(
    supervisor: Supervisor,
    tell: Callable[[Event], None],
    until_stdin_closes: bool,
    last_words: Path | None,
    folder: Path,
) -> None:
    from twolane.deploy.launch.controller_door import (
        ANSWER_S,
        ControllerDoor,
        open_controller_door,
    )

    stop, hurry = asyncio.Event(), asyncio.Event()

    def ask_to_stop() -> None:
        if not supervisor.is_up:
            # A start of Ray cannot be cancelled: exit, and the front kills all that was started.
            try:
                tell(Event(kind=Kind.STOPPING))
                if last_words is not None:
                    last_words.write_text("           stopped\n")
            finally:  # also if the reader of the output has gone
                door.over()
                loop.call_later(ANSWER_S, os._exit, 0)
            return
        if stop.is_set():  # at the second Ctrl-C, do not wait for running answers
            hurry.set()
        stop.set()

    def ask_once() -> None:  # a second operator is not a second Ctrl-C
        if not stop.is_set():
            ask_to_stop()

    door = ControllerDoor(supervisor, ask_once, tell)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ask_to_stop)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), read_stdin, loop, ask_to_stop)
    async with open_controller_door(door, folder):
        await supervisor.run(stop, hurry)


def _launcher(kind: str, cluster: ClusterSpec, log_dir: Path, scratch: Path) -> Launcher:
    if kind == "process":
        return ProcessLauncher(log_dir)
    missing = missing_for_serving(kind)  # the launcher may be set in a file
    if missing is not None:
        raise StartError(missing)
    from twolane.deploy.launch.ray_launcher import RayLauncher  # Ray takes a second to import

    os.chdir(scratch)  # Ray's workers import first from the folder in which Ray was started
    # Not below the log directory, as paths of Ray's sockets must be short. Ray gets no GPUs that
    # workers share.
    n_actors, each = cluster.n_workers + len(cluster.routers()), cluster.devices
    n_gpus = len(each) if len(each) == len({*each}) else 0
    return RayLauncher(log_dir, scratch / "r", n_actors=n_actors, n_gpus=n_gpus)


@contextlib.contextmanager
def _prints_to(log: Path) -> Iterator[TextIO]:
    """Redirect standard output to the log, for Ray above all; our events are printed to the real
    one. Yields the log. What a full disk does not take of it is dropped."""
    try:
        file = log.open("a")
    except OSError as error:
        raise StartError(f"--log-dir: {log} cannot be written: {error.strerror}") from error
    try:
        with contextlib.redirect_stdout(file):
            yield file
    finally:
        with contextlib.suppress(OSError):  # it writes once more what it could not write
            file.close()


def _tell_and_log(tell: Callable[[Event], None], log: TextIO, scratch: Path, event: Event) -> None:
    """Log the event and call `tell`. After a death, also leave a mark at which the front process
    keeps the logs. A full disk ends no cluster: `twolane doctor` warns of it."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):
        print(f"{when} I twolane.deploy.up: {event.to_json()}", file=log, flush=True)
    if event.kind is Kind.DIED:
        with contextlib.suppress(OSError):
            (scratch / CRASHED).touch()
    tell(event)


def _while_read(tell: Callable[[Event], None], out: TextIO) -> Callable[[Event], None]:
    """Wrap `tell`: when the reader of `out` is gone, stop the cluster as Ctrl-C does. What `out`
    cannot take, as on a full disk, is not told."""
    is_read = True

    def tell_reader(event: Event) -> None:
        nonlocal is_read
        if not is_read:
            return
        try:
            tell(event)
        except (BrokenPipeError, SystemExit):  # rich turns the first into the second
            is_read = False
            with open(os.devnull, "w") as nowhere:  # for what `out` flushes at exit
                os.dup2(nowhere.fileno(), out.fileno())
            signal.raise_signal(signal.SIGINT)
            with contextlib.suppress(BrokenPipeError):  # of standard error, too
                print("nobody reads the output any more: stopping", file=sys.stderr, flush=True)
        except OSError:
            return

    return tell_reader


def _print_json(out: TextIO, event: Event) -> None:
    print(event.to_json(), file=out, flush=True)
