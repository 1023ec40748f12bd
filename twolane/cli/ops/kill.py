"""`twolane kill`: ends a worker now, and does not restart it."""

from __future__ import annotations

from functools import partial

import click

from twolane.admin import AdminClient
from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.completion import workers
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import SLOW_S, change, print_proof
from twolane.cli.ops.epochs import epoch_of, expect_epoch_option
from twolane.errors import TwolaneError
from twolane.v1 import acts_pb2, cluster_pb2

_GONE = "gone"


@click.command()
@click.argument("worker_id", metavar="WORKER", shell_complete=workers)
@expect_epoch_option
@act_options
@json_option
@operator_option
def kill(
    worker_id: str,
    *,
    expect_epoch: str,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Kill WORKER, prove that it has ended, and do not restart it.

    Its requests are resumed elsewhere. Its pool is pinned at one worker less: `twolane scale
    POOL=auto` restores it. While there is no proof, shows what it waits for; exits with 5 if there
    is none in the end.
    """
    with operator(endpoint) as admin:
        request = acts_pb2.KillWorkerRequest(
            act=new_act(reason, dry_run=dry_run),
            worker_id=worker_id,
            expect_epoch=epoch_of(admin, worker_id, expect_epoch) if expect_epoch else 0,
        )
        nothing = f"{worker_id} is to end already"
        done = change(
            admin, "KillWorker", request, yes=yes, as_json=as_json, nothing=nothing,
            within_s=SLOW_S, left=partial(until_ended, admin, worker_id),
        )  # fmt: skip
    print_proof(done, as_json=as_json)


def until_ended(admin: AdminClient, worker_id: str) -> str:
    """Text such as `no proof yet that decode-0 has ended; it is suspect, its host node-b is silent
    (fence command)`."""
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    try:
        found = admin.call("GetClusterStatus", asked, within_s=2.0)
    except TwolaneError as error:
        return f"the router does not answer: {error.message}"
    states = [its.state for its in found.workers if its.worker.worker_id == worker_id]
    known = [f"it is {state}" for state in states if state != _GONE]  # not its earlier incarnations
    if states and not known:
        known.append("the router counts it as gone")
    known += [
        f"its host {host.name} is {host.state}" + f" ({host.note})" * bool(host.note)
        for host in found.hosts
        if worker_id in host.workers
    ]
    why = f"; {', '.join(known)}" * bool(known)
    return f"no proof yet that {worker_id} has ended{why}"
