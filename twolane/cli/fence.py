"""`twolane fence` and `twolane down`: what ends, and the proof of it."""

from __future__ import annotations

import os
import sys
import time

import click

from twolane.cli.completion import workers
from twolane.cli.controller import ControllerClient, NotProvenError

_POLL_S = 0.1

launcher_option = click.option(
    "--endpoint",
    metavar="unix:PATH",
    help="The launcher's socket.  [default: that of this machine's cluster]",
)


@click.command()
@click.argument("worker_id", metavar="WORKER", required=False, shell_complete=workers)
@click.option("--host", "--node", metavar="NAME", help="A silent host, with --i-saw-it-off.")
@click.option("--i-saw-it-off", "is_off", is_flag=True, help="You have seen that the host is off.")
@launcher_option
def fence(worker_id: str | None, *, host: str | None, is_off: bool, endpoint: str | None) -> None:
    """Kill WORKER and prove that it has ended; it is started again.

    Prints the class of the proof. Exits with 5 where there is none. On a silent host that has a
    fence command, that is run: it switches the whole host off.
    """
    if (worker_id is None) == (host is None) or is_off != (host is not None):
        raise click.UsageError("name a WORKER, or a host that is off: --host NAME --i-saw-it-off")
    with ControllerClient(endpoint) as controller:
        proof = controller.say_off(host) if host else controller.fence(str(worker_id))
    click.echo(proof)


@click.command()
@click.option(
    "--topology", metavar="FILE", help="End a cluster of several hosts that has no launcher."
)
@click.option("--secret-file", metavar="FILE", help="With --topology: the cluster's secret.")
@click.option(
    "--ray-address",
    metavar="auto|HOST:PORT",
    help="End a cluster on the Ray that runs here, or there.",
)
@click.option(
    "--cluster", default="default", show_default=True, help="With --ray-address: its name."
)
@click.option("--timeout-s", type=float, default=120.0, show_default=True)
@launcher_option
def down(
    *,
    topology: str | None,
    secret_file: str | None,
    ray_address: str | None,
    cluster: str,
    timeout_s: float,
    endpoint: str | None,
) -> None:
    """End a cluster: this machine's, that of --topology, or one on a Ray.

    No process of it is left. Exits with 5 if something may still run.
    """
    if topology is not None or ray_address is not None:
        command = [sys.executable, "-P", "-m", "twolane.deploy", "down"]
        command += ["--topology", topology] if topology else []
        command += ["--secret-file", secret_file] if secret_file else []
        command += ["--ray-address", ray_address, "--cluster", cluster] if ray_address else []
        sys.stdout.flush()
        os.execve(sys.executable, command, {**os.environ, "PYTHONSAFEPATH": "1"})
    with ControllerClient(endpoint) as controller:
        controller.stop()
        end = time.monotonic() + timeout_s
        while controller.folder.exists():
            if time.monotonic() > end:
                raise NotProvenError(f"it still runs after {timeout_s:g} s: {controller.folder}")
            time.sleep(_POLL_S)
    click.echo("stopped")
