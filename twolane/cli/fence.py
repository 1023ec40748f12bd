"""`twolane fence` and `twolane down`: end processes, and prove that they have ended."""

from __future__ import annotations

import os
import re
import sys
import time
from functools import partial
from pathlib import Path

import click

from twolane.admin import UNIX, live_sockets
from twolane.cli.common import json_option, operator, operator_option, print_json
from twolane.cli.completion import workers
from twolane.cli.controller import ControllerClient, NotProvenError
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import SLOW_S, change, confirm, print_proof
from twolane.cli.ops.epochs import epoch_of, expect_epoch_option
from twolane.cli.ops.kill import until_ended
from twolane.cli.ops.output import print_message
from twolane.cli.times import Seconds
from twolane.cli.waiting import telling
from twolane.config import CONTROLLER_SOCKET_NAME, named_endpoint
from twolane.v1 import acts_pb2

_POLL_S = 0.1

launcher_option = click.option(
    "--endpoint",
    metavar="HOST:PORT|unix:PATH",
    help="A cluster of yours on this machine, by its clients' HOST:PORT or its launcher's socket.  "
    "[default: this machine's cluster]",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@click.argument("worker_id", metavar="WORKER", required=False, shell_complete=workers)
@click.option("--host", "--node", metavar="NAME", help="A silent host, with --i-saw-it-off.")
@click.option("--i-saw-it-off", "is_off", is_flag=True, help="You have seen that the host is off.")
@expect_epoch_option
@act_options
@json_option
@operator_option
def fence(
    worker_id: str | None,
    *,
    host: str | None,
    is_off: bool,
    expect_epoch: str,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Kill WORKER and prove that it has ended; it is then restarted.

    Prints the class of the proof. Exits with 5 if there is no proof. If WORKER's host is silent and
    has a fence command, the command is run: it switches the whole host off.

    Any router takes the command. The launcher's own socket takes it too, as `--endpoint`, or where
    no router runs on this machine; hosts that are off are declared only there.
    """
    if (worker_id is None) == (host is None) or is_off != (host is not None):
        raise click.UsageError("name a WORKER, or a host that is off: --host NAME --i-saw-it-off")
    act = new_act(reason, dry_run=dry_run)
    if worker_id is None or _is_launchers(endpoint):
        _at_launcher(
            worker_id, host, act, expect_epoch, yes=yes, as_json=as_json, endpoint=endpoint
        )
        return
    with operator(endpoint) as admin:
        request = acts_pb2.KillWorkerRequest(
            act=act,
            worker_id=worker_id,
            may_restart=True,
            expect_epoch=epoch_of(admin, worker_id, expect_epoch) if expect_epoch else 0,
        )
        done = change(
            admin, "KillWorker", request, yes=yes, as_json=as_json, within_s=SLOW_S,
            nothing=f"{worker_id} does not run", left=partial(until_ended, admin, worker_id),
        )  # fmt: skip
    print_proof(done, as_json=as_json)


def _at_launcher(
    worker_id: str | None,
    host: str | None,
    act: acts_pb2.Act,
    expect_epoch: str,
    *,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    if expect_epoch:
        raise click.UsageError("the launcher's socket knows no --expect-epoch: name a router's")
    change = (
        acts_pb2.Change(
            subject=f"host {host}", after="all that ran there counts as dead, and starts elsewhere"
        )
        if host
        else acts_pb2.Change(subject=worker_id, after="is killed, and started again")
    )
    if act.dry_run and as_json:
        print_message(acts_pb2.ActResponse(changes=[change], dry_run=True))
        return
    what = f"{change.subject}{':' * bool(host)} {change.after}"
    if not confirm(what, yes=yes, dry_run=act.dry_run):
        return
    with ControllerClient(endpoint) as controller:
        if host:
            proof = controller.say_off(host)
        else:
            with telling(lambda: f"no proof yet that {worker_id} has ended"):
                proof = controller.fence(str(worker_id))
    if as_json:
        found = re.search(r"proof of class ([ABC])\b", proof)
        its_class = found[1] if found else ""
        print_message(acts_pb2.ActResponse(changes=[change], proof=proof, proof_class=its_class))
        return
    click.echo(proof)


def _is_launchers(endpoint: str | None) -> bool:
    """Whether this is a launcher's socket; with None, whether there is nothing else here."""
    if endpoint is not None:
        return endpoint.startswith(UNIX) and Path(endpoint).name == CONTROLLER_SOCKET_NAME
    return (
        named_endpoint() is None
        and not live_sockets()
        and len(live_sockets(CONTROLLER_SOCKET_NAME)) > 0
    )


@click.command()
@click.option(
    "--topology", metavar="FILE", help="Stop a cluster of several hosts whose launcher has ended."
)
@click.option("--secret-file", metavar="FILE", help="With --topology: the cluster's secret.")
@click.option(
    "--ray-address",
    metavar="auto|HOST:PORT",
    help="Stop a cluster on Ray: the Ray on this machine, or at this address.",
)
@click.option("--cluster", help="With --ray-address: the cluster's name.  [default: default]")
@click.option(
    "--timeout-s",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Exit with 5 after this time; on Ray, grace periods bound it instead.",
)
@yes_option
@json_option
@launcher_option
def down(
    *,
    topology: str | None,
    secret_file: str | None,
    ray_address: str | None,
    cluster: str | None,
    timeout_s: float,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Stop a cluster: this machine's, the one of --topology, or one on Ray.

    Afterwards none of its processes is left. Exits with 5 if one may still run.
    """
    if secret_file is not None and topology is None:
        raise click.UsageError("--secret-file needs the --topology of its cluster")
    if cluster is not None and ray_address is None:
        raise click.UsageError("--cluster needs the --ray-address of its Ray")
    if topology is not None or ray_address is not None:
        cluster = cluster or "default"
        which = f"of {topology}" if topology else f"{cluster} on Ray at {ray_address}"
        confirm(f"the cluster {which} ends, with all its requests", yes=yes)
        command = [sys.executable, "-P", "-m", "twolane.deploy", "down"]
        command += ["--topology", topology] if topology else []
        command += ["--secret-file", secret_file] if secret_file else []
        command += ["--ray-address", ray_address, "--cluster", cluster] if ray_address else []
        command += ["--timeout-s", f"{timeout_s:g}", *["--json"] * as_json]
        sys.stdout.flush()
        os.execve(sys.executable, command, {**os.environ, "PYTHONSAFEPATH": "1"})
    with ControllerClient(endpoint) as controller:
        confirm(f"the cluster in {controller.folder} ends, with all its requests", yes=yes)
        with telling(lambda: "running answers and processes end"):
            end = time.monotonic() + timeout_s
            controller.stop(timeout_s)
            while controller.folder.exists():
                if time.monotonic() > end:
                    text = f"still running after {timeout_s:g} s: {controller.folder}"
                    raise NotProvenError(text)
                time.sleep(_POLL_S)
    if as_json:
        print_json({"stopped": str(controller.folder)}, schema="twolane.Stopped")
        return
    click.echo("stopped")
