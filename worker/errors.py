"""Errors of a worker, in addition to `twolane.errors`.

WorkerError
├── DisplacedError      a router has declared this incarnation dead: the process must end
├── StaleEpochError     a stream or command is for another incarnation of this worker
├── RouterInUseError    another router of that id is connected: one of them needs another id
└── RowRefusedError     an ASSIGN that this worker cannot accept; carries a stable reason
"""

from __future__ import annotations

from twolane.refusals import Refusal


class WorkerError(Exception):
    """Root of the tree."""


class DisplacedError(WorkerError):
    """Another worker has its name, or it was reported dead. Another incarnation may come back."""


class StaleEpochError(WorkerError):
    """The caller addresses a process that no longer runs. It must learn the new epoch first."""


class RouterInUseError(WorkerError):
    """Two live routers use the same id. The one that connected first stays."""


class RowRefusedError(WorkerError):
    """Becomes RowEvent REFUSED. `twolane.refusals` lists the reasons."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
