"""Errors of starting and stopping the processes of a cluster."""

from __future__ import annotations

from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)


class StartError(Exception):
    """A process did not start. The text is the process' own error message, or the system's."""


class WrongTopologyError(StartError):
    """There is no such topology, or it has errors. The exit code is 2."""


class NoAgentError(StartError):
    """None of the hosts' agents answers."""


class NotProvenError(Exception):
    """A process may still be running. The text says why this cannot be determined."""


class DeposedError(Exception):
    """Another controller has taken over the cluster. All processes keep running under it."""


class RefusedError(Exception):
    """An operator's act cannot be done, and nothing of it was. The text says why."""


def first_error(errors: ExceptionGroup[ErrorT]) -> ErrorT:
    """The first leaf of a (nested) exception group: the others usually follow from it."""
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error
