"""Checks which incarnation of a worker a command means."""

from __future__ import annotations

from twolane.admin import AdminClient
from twolane.cli.rows import EPOCH_SHOWN
from twolane.errors import InvalidRequestError, PreconditionError


def epoch_of(admin: AdminClient, worker_id: str, expected: str) -> int:
    """The worker's epoch. `expected` is as `twolane status` shows it, with or without --json.
    Raises if it differs."""
    ours = [w.epoch for w in admin.status().workers if w.worker_id == worker_id and w.is_here]
    if not ours:
        raise InvalidRequestError(f"there is no worker {worker_id!r}", field="worker_id")
    epoch = ours[-1]
    is_beginning = len(expected) >= EPOCH_SHOWN and f"{epoch:016x}".startswith(expected)
    if expected and not is_beginning and expected != str(epoch):
        raise PreconditionError(
            f"{worker_id} was restarted: its epoch is {epoch:016x}, not {expected}"
        )
    return epoch
