"""`twolane scaler`: what decides on the sizes of pools, and why."""

from __future__ import annotations

import click

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import change
from twolane.cli.ops.output import print_message
from twolane.errors import PreconditionError
from twolane.v1 import acts_pb2, cluster_pb2

_OFF = "this cluster does not size its pools: start it with --autoscale"
_MODES = {
    "on": "on",
    "dry-run": "a dry run: it decides, and does nothing",
    "paused": "paused: it decides nothing",
}


@click.group()
def scaler() -> None:
    """What decides on the sizes of the pools: look at it, stop it, let it go on."""


@scaler.command()
@json_option
@operator_option
def status(*, as_json: bool, endpoint: str | None) -> None:
    """Whether it is on, the budget, and each pool's size and need."""
    its = _status(endpoint)
    if as_json:
        print_message(its)
        return
    click.echo(f"scaler: {_MODES.get(its.mode, its.mode)}")
    unit = its.unit or "GPUs"
    click.echo(f"budget: {its.held_gpus} of {its.budget_gpus} {unit} are held")
    slo = f"first token within {its.ttft_s:g} s, gaps of {1000 * its.gap_s:g} ms"
    held = f"{its.attainment:.1%} of the last 5 minutes' answers held it"
    click.echo(f"SLO: {slo}; {held if its.has_attainment else 'no answers in the last 5 minutes'}")
    for pool in its.pools:
        click.echo(
            f"{pool.pool}: {pool.have} of {pool.target} workers, {pool.need} needed, "
            f"{pool.least} to {pool.most} allowed; the load is {pool.load:.2f} workers"
        )


@scaler.command()
@json_option
@operator_option
def explain(*, as_json: bool, endpoint: str | None) -> None:
    """Why the pools have these sizes, in sentences, and what was done lately."""
    its = _status(endpoint)
    if as_json:
        print_message(its)
        return
    for line in its.reasons:
        click.echo(line)
    for deed in its.deeds:
        click.echo(f"{deed.ago_s:.0f} s ago: {deed.text}")


def _mode_command(name: str, mode: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @act_options
    @json_option
    @operator_option
    def command(
        *, reason: str, dry_run: bool, yes: bool, as_json: bool, endpoint: str | None
    ) -> None:
        request = acts_pb2.SetScalerRequest(act=new_act(reason, dry_run=dry_run), mode=mode)
        with operator(endpoint) as admin:
            change(admin, "SetScaler", request, yes=yes, as_json=as_json, nothing="no change")

    return command


for each in (
    ("pause", "paused", "Decide nothing: sizes stay as they are until `twolane scaler resume`."),
    ("resume", "on", "Decide and act again."),
    ("dry-run", "dry-run", "Decide and tell, and do nothing, until `twolane scaler resume`."),
):
    scaler.add_command(_mode_command(*each))


def _status(endpoint: str | None) -> cluster_pb2.ScalerStatus:
    """Raises `PreconditionError` if there is none."""
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    with operator(endpoint) as admin:
        found: cluster_pb2.GetClusterStatusResponse = admin.call("GetClusterStatus", asked)
    if not found.HasField("scaler"):
        raise PreconditionError(_OFF)
    return found.scaler
