"""The launcher: one cluster on this machine, kept up until Ctrl-C. `deploy.up` runs it.

Its options and their help need the extra `cli` alone; what serving needs is imported later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console

from deploy.devices import settled, visible_devices
from deploy.events import Event, Kind
from deploy.launcher import Launcher, StartError
from deploy.options import (
    HTTP_OPTIONS,
    LIMIT_OPTIONS,
    MODEL_OPTIONS,
    TIMING_OPTIONS,
    http_port,
    limits_spec,
    model_spec,
    timing_spec,
    with_options,
)
from deploy.process_launcher import ProcessLauncher
from deploy.progress import Progress
from deploy.spec import TRANSPORTS, ClusterSpec

if TYPE_CHECKING:
    from deploy.supervisor import Supervisor

_COUNT = click.IntRange(min=0)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--prefill", type=_COUNT, help="Workers that read prompts.  [default: 1]")
@click.option("--decode", type=_COUNT, help="Workers that write answers.  [default: 1]")
@click.option("--colocated", type=_COUNT, default=0, help="Workers that do both.")
@click.option("--launcher", type=click.Choice(["ray", "process"]), default="ray", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where clients come in.")
@click.option("--port", type=click.IntRange(0, 65535), default=7200, show_default=True)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(TRANSPORTS),
    help="How pages travel; may be repeated, best first.  [default: the best that works]",
)
@with_options(HTTP_OPTIONS)
@with_options(MODEL_OPTIONS)
@with_options(LIMIT_OPTIONS)
@with_options(TIMING_OPTIONS)
@click.option("--log-dir", type=click.Path(path_type=Path), help="Keep the processes' output here.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
@click.option("--until-stdin-closes", is_flag=True, help="Stop when standard input ends, too.")
@click.pass_obj
def up(scratch: Path, /, **given: Any) -> None:
    """Start a cluster on this machine and keep it up until Ctrl-C.

    Without any count: one prefill and one decode worker.
    """
    from deploy.supervisor import Supervisor

    out, log_dir = sys.stdout, given["log_dir"] or scratch
    tell: Callable[[Event], None] = partial(_print_json, out)
    try:
        cluster = settled(_cluster_spec(given), visible_devices())
        _make(log_dir)
        with _prints_to(log_dir / "launcher.log"):
            if not given["as_json"]:
                tell = Progress(Console(file=out, highlight=False), cluster, log_dir)
            launcher = _launcher(given["launcher"], cluster, log_dir, scratch)
            supervisor = Supervisor(cluster, launcher, tell, log_dir=log_dir)
            asyncio.run(_keep_up(supervisor, tell, given["until_stdin_closes"]))
    except StartError as error:
        if given["as_json"]:
            tell(Event(kind=Kind.FAILED, text=str(error)))
            raise SystemExit(1) from error
        raise click.ClickException(str(error)) from error


def _make(log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--log-dir {log_dir} cannot be made: {error.strerror}") from error


def _cluster_spec(given: dict[str, Any]) -> ClusterSpec:
    """Refuses a cluster that could never answer."""
    colocated = given["colocated"]
    prefill, decode = given["prefill"], given["decode"]
    if prefill is None and decode is None:
        prefill = decode = 0 if colocated else 1
    prefill, decode = prefill or 0, decode or 0
    if not colocated and not (prefill and decode):
        raise click.UsageError(
            f"{prefill} prefill and {decode} decode workers can answer nothing; "
            "take at least one of each, or --colocated 1"
        )
    return ClusterSpec(
        model=model_spec(given, n_workers=prefill + decode + colocated),
        prefill=prefill,
        decode=decode,
        colocated=colocated,
        host=given["host"],
        port=given["port"],
        http_port=http_port(given),
        transports=given["transports"] or TRANSPORTS,
        timing=timing_spec(given),
        limits=limits_spec(given),
    )


async def _keep_up(
    supervisor: Supervisor, tell: Callable[[Event], None], until_stdin_closes: bool
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def ask_to_stop() -> None:
        if not supervisor.is_up:
            # Nobody is owed an answer, and a Ray that starts cannot be called off: the front ends
            # all that was started.
            try:
                tell(Event(kind=Kind.STOPPING))
            finally:  # whoever reads may be gone
                os._exit(0)
        if stop.is_set():  # the second Ctrl-C is impatient
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ask_to_stop)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, loop, ask_to_stop)
    await supervisor.run(stop, hurry)


def _read_stdin(loop: asyncio.AbstractEventLoop, at_end: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        at_end()


def _launcher(kind: str, cluster: ClusterSpec, log_dir: Path, scratch: Path) -> Launcher:
    if kind == "process":
        return ProcessLauncher(log_dir)
    from deploy.ray_launcher import RayLauncher  # Ray takes a second to import

    # Not below the log directory: Ray's sockets want a short path.
    n_actors, n_gpus = cluster.n_workers + 1, len(cluster.devices)
    return RayLauncher(log_dir, scratch / "r", n_actors=n_actors, n_gpus=n_gpus)


@contextlib.contextmanager
def _prints_to(log: Path) -> Iterator[None]:
    """Ray prints what it likes; our own lines go to the real standard output."""
    with log.open("a") as file, contextlib.redirect_stdout(file):
        yield


def _print_json(out: TextIO, event: Event) -> None:
    print(event.to_json(), file=out, flush=True)
