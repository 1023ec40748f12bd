"""What a worker refuses, beside twolane's errors.

WorkerError
├── DisplacedError      a router has given this incarnation up: the process is to end
├── StaleEpochError     a stream, or a command, is meant for another incarnation of this worker
├── RouterInUseError    another router of that id is here: one of the two needs another id
└── RowRefusedError     an ASSIGN that this worker cannot take; carries the reason's stable word
"""

from __future__ import annotations

from twolane.refusals import Refusal


class WorkerError(Exception):
    """Root of the tree."""


class DisplacedError(WorkerError):
    """Another worker has its name, or it was reported dead. Another incarnation may come back."""


class StaleEpochError(WorkerError):
    """The other side speaks to a process that runs no more. It must learn the new epoch first."""


class RouterInUseError(WorkerError):
    """Two live routers call themselves the same. The one that was here first stays."""


class RowRefusedError(WorkerError):
    """Becomes RowEvent REFUSED. `twolane.refusals` tells what each reason means."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
