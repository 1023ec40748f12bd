"""`twolane kill`: ends a worker now, and does not restart it."""

from __future__ import annotations

import click

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.completion import workers
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import SLOW_S, change, print_proof
from twolane.cli.ops.epochs import epoch_of
from twolane.v1 import acts_pb2


@click.command()
@click.argument("worker_id", metavar="WORKER", shell_complete=workers)
@click.option(
    "--expect-epoch", default="", metavar="EPOCH", help="Refuse if the worker was restarted."
)
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
    POOL=auto` restores it. Exits with 5 if there is no proof.
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
            within_s=SLOW_S,
        )  # fmt: skip
    print_proof(done, as_json=as_json)
