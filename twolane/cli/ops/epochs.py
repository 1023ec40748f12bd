"""Checks which incarnation of a worker a command means."""

from __future__ import annotations

import click

from twolane.admin import AdminClient
from twolane.cli.rows import EPOCH_SHOWN
from twolane.errors import PreconditionError, no_worker

expect_epoch_option = click.option(
    "--expect-epoch",
    default="",
    metavar="EPOCH",
    help="Refuse if the worker's epoch is another: it was restarted.",
)


def epoch_of(admin: AdminClient, worker_id: str, expected: str) -> int:
    """The worker's epoch. `expected` is as `twolane status` shows it, with or without --json.
    Raises if it differs."""
    here = [w for w in admin.status().workers if w.is_here]
    ours = [w.epoch for w in here if w.worker_id == worker_id]
    if not ours:
        raise no_worker(worker_id, [w.worker_id for w in here])
    epoch = ours[-1]
    is_beginning = len(expected) >= EPOCH_SHOWN and f"{epoch:016x}".startswith(expected)
    if expected and not is_beginning and expected != str(epoch):
        raise PreconditionError(
            f"{worker_id} was restarted: its epoch is {epoch:016x}, not {expected}"
        )
    return epoch
