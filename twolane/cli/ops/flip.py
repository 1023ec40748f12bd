"""`twolane flip`: has a worker take the other role."""

from __future__ import annotations

import click

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.completion import workers
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import change
from twolane.cli.ops.epochs import epoch_of, expect_epoch_option
from twolane.v1 import acts_pb2


@click.command()
@click.argument("worker_id", metavar="WORKER", shell_complete=workers)
@expect_epoch_option
@act_options
@json_option
@operator_option
def flip(
    worker_id: str,
    *,
    expect_epoch: str,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Have WORKER take the other role, prefill or decode, while it runs.

    It serves the new role at once; its requests in the old one run out. Both pools are pinned at
    their new sizes, unless the cluster sizes them itself. The worker must have been started with
    --flips or --autoscale.
    """
    with operator(endpoint) as admin:
        request = acts_pb2.FlipWorkerRequest(
            act=new_act(reason, dry_run=dry_run),
            worker_id=worker_id,
            expect_epoch=epoch_of(admin, worker_id, expect_epoch) if expect_epoch else 0,
        )
        nothing = f"{worker_id} has that role already"
        change(admin, "FlipWorker", request, yes=yes, as_json=as_json, nothing=nothing)
