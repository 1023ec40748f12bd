"""`twolane rollout`: brings every worker to another revision of the model while the cluster
serves."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from pathlib import Path

import click

from twolane.admin import AdminClient
from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.controller import NotProvenError
from twolane.cli.ops.acting import act_options, new_act
from twolane.cli.ops.changing import SLOW_S, change
from twolane.cli.ops.output import print_message, rollout_in_words, show
from twolane.cli.patience import Patient
from twolane.cli.rows import Rows
from twolane.cli.times import Seconds
from twolane.cli.waiting import News
from twolane.errors import PreconditionError, TwolaneError
from twolane.params import MAX_INT
from twolane.v1 import acts_pb2, cluster_pb2

_POLL_S = 0.5
_STEP = acts_pb2.StepRolloutRequest
_OVER = ("done", "undone")
_HELD = ("canary", "paused")  # until an operator says so
_NOTHING = "no change"
_UNTOLD = "no controller has told this router of the rollout"

wait_option = click.option(
    "--wait",
    is_flag=True,
    help="Return when it is over, or waits for you; exit with 1 if it is not as asked for then. "
    "With --json: print how it is then.",
)
timeout_option = click.option(
    "--timeout-s",
    type=Seconds(),
    default=3600.0,
    show_default=True,
    help="With --wait: exit with 5 if it takes longer.",
)


class Share(click.ParamType[float]):
    """5% or 0.05."""

    name = "share"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value)
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            self.fail(f"{text} is no share: give one like 5%, or no --canary", param, ctx)
        return share


@click.group()
def rollout() -> None:
    """Bring every worker to another revision of the model while the cluster serves."""


@rollout.command()
@click.argument("model_dir", type=click.Path(path_type=Path))
@click.option(
    "--canary",
    type=Share(),
    metavar="5%",
    help="Give the first new pair at most this share of new requests, and wait for `resume`.",
)
@click.option(
    "--extra-workers",
    type=click.IntRange(0, MAX_INT),
    default=0,
    metavar="N",
    help="Let pools of one worker have a second one meanwhile: at most N workers in all.",
)
@wait_option
@timeout_option
@act_options
@json_option
@operator_option
def start(
    model_dir: Path,
    *,
    canary: float | None,
    extra_workers: int,
    wait: bool,
    timeout_s: float,
    reason: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Bring every worker to the weights in MODEL_DIR, an absolute path that every host has.

    One prefill and one decode worker at a time drain, are stopped on their tickets, and start again
    on their seats. Both revisions serve meanwhile; a pair of workers is always of one.
    """
    if not model_dir.is_absolute():
        raise click.BadParameter(f"{model_dir} is not an absolute path: it is one of the hosts'")
    request = acts_pb2.StartRolloutRequest(
        act=new_act(reason, dry_run=dry_run),
        model_dir=str(model_dir),
        canary_share=canary or 0.0,
        extra_workers=extra_workers,
    )
    with operator(endpoint) as admin:
        done = change(
            admin, "StartRollout", request, yes=yes, as_json=as_json, nothing=_NOTHING,
            within_s=SLOW_S, quiet=as_json and wait, left=lambda: f"hosts read {model_dir}",
        )  # fmt: skip
        if wait and not dry_run:
            ends = ("done", "canary")
            with Patient(admin, partial(operator, endpoint)) as patient:
                _wait(patient, timeout_s, ends, has_begun=_changes(done), as_json=as_json)


@rollout.command()
@json_option
@operator_option
def status(*, as_json: bool, endpoint: str | None) -> None:
    """How far the latest rollout is, and what it waits for."""
    with operator(endpoint) as admin:
        its = _status(admin)
    if as_json:
        print_message(its)
        return
    table = Rows(("worker", "revision", "now"), ("requests",))
    for worker in its.workers:
        revision = "new" if worker.is_new else "former"
        table.add_row(worker.name, revision, worker.now, str(worker.requests))
    show(rollout_in_words(its), table)


def _step_command(
    name: str, step: acts_pb2.StepRolloutRequest.Step, ends: Collection[str], help_text: str
) -> None:
    """`ends`: the states that it is asked for."""

    @rollout.command(name, help=help_text)
    @wait_option
    @timeout_option
    @act_options
    @json_option
    @operator_option
    def command(
        *,
        wait: bool,
        timeout_s: float,
        reason: str,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        endpoint: str | None,
    ) -> None:
        request = _STEP(act=new_act(reason, dry_run=dry_run), step=step)
        with operator(endpoint) as admin:
            done = change(
                admin, "StepRollout", request, yes=yes, as_json=as_json, nothing=_NOTHING,
                quiet=as_json and wait,
            )  # fmt: skip
            if wait and not dry_run:
                with Patient(admin, partial(operator, endpoint)) as patient:
                    _wait(patient, timeout_s, ends, has_begun=_changes(done), as_json=as_json)


_step_command(
    "pause", _STEP.STEP_PAUSE, ("paused",),
    "Drain no further worker. Those that drain start again as planned.",
)  # fmt: skip
_step_command(
    "resume", _STEP.STEP_RESUME, ("done", "canary"),
    "Go on after a pause; or after the canary, with no limit on it.",
)  # fmt: skip
_step_command(
    "undo", _STEP.STEP_UNDO, ("undone",),
    "Bring every worker back to the former revision, pair by pair. New ones that do not serve yet "
    "are called off at once.",
)  # fmt: skip


def _changes(done: acts_pb2.ActResponse | None) -> bool:
    return done is not None and bool(done.changes)


def _wait(
    patient: Patient[AdminClient],
    timeout_s: float,
    ends: Collection[str],
    *,
    has_begun: bool,
    as_json: bool,
) -> None:
    """Without `has_begun`, there may be none, or an earlier one that has ended in any way. Raises
    `TwolaneError` if it ends in no state of `ends`, and `NotProvenError` if it takes longer."""
    end, news, text = time.monotonic() + timeout_s, News(err=as_json), ""
    while True:
        its = patient.look(_latest)
        if its is None and not (has_begun or text):
            return
        text = _UNTOLD if its is None else rollout_in_words(its)
        news.tell(text)
        if its is not None and _is_over(its):
            break
        if time.monotonic() > end:
            raise NotProvenError(f"not over after {timeout_s:g} s: {text}")
        time.sleep(_POLL_S)
    if as_json:
        print_message(its)
    if its.state not in ends and (has_begun or its.state not in _OVER):
        raise TwolaneError(f"the rollout is {its.state}, not {' or '.join(ends)}")


def _is_over(its: cluster_pb2.RolloutStatus) -> bool:
    """Whether it is over, or waits for an operator."""
    return its.state in _OVER or (its.state in _HELD and _is_settled(its))


def _is_settled(its: cluster_pb2.RolloutStatus) -> bool:
    return all(worker.now == "serves" for worker in its.workers)


def _status(admin: AdminClient) -> cluster_pb2.RolloutStatus:
    """Raises `PreconditionError` if there was none."""
    its = _latest(admin)
    if its is None:
        raise PreconditionError("there has been no rollout since this cluster was started")
    return its


def _latest(admin: AdminClient) -> cluster_pb2.RolloutStatus | None:
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    found: cluster_pb2.GetClusterStatusResponse = admin.call("GetClusterStatus", asked)
    return found.rollout if found.HasField("rollout") else None
