"""`twolane cordon`, `uncordon` and `drain-node`: keep new workers off a host, or empty it."""

from __future__ import annotations

import time

import click

from twolane.admin import AdminClient
from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.controller import NotProvenError
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import change
from twolane.cli.times import Seconds
from twolane.cli.waiting import News
from twolane.v1 import acts_pb2, cluster_pb2

_SILENT = "silent"  # a value of HostStatus.state
_POLL_S = 0.2
host_argument = click.argument("host", metavar="HOST")


@click.command()
@host_argument
@act_options
@json_option
@operator_option
def cordon(
    host: str, *, reason: str, dry_run: bool, yes: bool, as_json: bool, endpoint: str | None
) -> None:
    """Start no new workers on HOST. Running ones continue; one that dies is restarted elsewhere."""
    request = acts_pb2.CordonHostRequest(act=new_act(reason, dry_run=dry_run), host=host)
    with operator(endpoint) as admin:
        nothing = f"{host} is cordoned already"
        change(admin, "CordonHost", request, yes=yes, as_json=as_json, nothing=nothing)


@click.command()
@host_argument
@act_options
@json_option
@operator_option
def uncordon(
    host: str, *, reason: str, dry_run: bool, yes: bool, as_json: bool, endpoint: str | None
) -> None:
    """Allow new workers on HOST again. Workers that still drain there stay if pools need them."""
    request = acts_pb2.CordonHostRequest(act=new_act(reason, dry_run=dry_run), host=host, undo=True)
    with operator(endpoint) as admin:
        nothing = f"{host} takes new workers already"
        change(admin, "CordonHost", request, yes=yes, as_json=as_json, nothing=nothing)


@click.command("drain-node")
@host_argument
@click.option("--hand-over", is_flag=True, help="Resume running answers elsewhere, as room allows.")
@click.option("--no-wait", is_flag=True, help="Return at once.")
@click.option(
    "--timeout-s",
    type=Seconds(),
    default=600.0,
    show_default=True,
    help="Exit with 5 after so long.",
)
@act_options
@json_option
@operator_option
def drain_node(
    host: str,
    *,
    hand_over: bool,
    no_wait: bool,
    timeout_s: float,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Cordon HOST, drain its workers, and report when it is safe to switch it off.

    Each worker is stopped when it has its ticket, so nothing is lost. Its replacement starts on
    another host that has room.
    """
    request = acts_pb2.DrainHostRequest(
        act=new_act(reason, dry_run=dry_run), host=host, hand_over=hand_over
    )
    with operator(endpoint) as admin:
        nothing = f"{host} is cordoned already, and has no workers"
        done = change(admin, "DrainHost", request, yes=yes, as_json=as_json, nothing=nothing)
        if not (dry_run or no_wait):
            _wait(admin, host, timeout_s)
            if not as_json:
                stay = [its.subject for its in done.changes if its.stays] if done else []
                others = f", but {' and '.join(stay)} would end with it" if stay else ""
                click.echo(f"{host} is safe: no worker is left there{others}")


def _wait(admin: AdminClient, host: str, timeout_s: float) -> None:
    """Says what is left. Raises `NotProvenError` if it takes longer."""
    end, news = time.monotonic() + timeout_s, News()
    while text := _left(_status(admin, host)):
        news.tell(f"{host}: {text}")
        if time.monotonic() > end:
            raise NotProvenError(f"{host} is not safe after {timeout_s:g} s: {text}")
        time.sleep(_POLL_S)


def _status(admin: AdminClient, host: str) -> cluster_pb2.HostStatus | None:
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    found: cluster_pb2.GetClusterStatusResponse = admin.call("GetClusterStatus", asked)
    return next((its for its in found.hosts if its.name == host), None)


def _left(its: cluster_pb2.HostStatus | None) -> str:
    """Why the host may not be switched off yet; empty: it may."""
    if its is None:
        return "no controller has told this router of it"
    if not its.cordoned:
        return "it is not cordoned"
    names = ", ".join(its.workers)
    if its.workers and its.state == _SILENT:
        return f"it is silent: {names} may still run there"
    return names and f"still there: {names}"
