"""Why a cluster, or a process of it, does not come up."""

from __future__ import annotations

from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=Exception)


class StartError(Exception):
    """A process did not come up; the text is its own account of why, or the system's."""


class NotProvenError(Exception):
    """A process may still run; the text tells why nobody knows."""


class DeposedError(Exception):
    """Another controller has taken over. All processes run on, and are its business."""


def first_error(errors: ExceptionGroup[ErrorT]) -> ErrorT:
    """Of what task groups piled up, one is enough to tell: the others are its consequences."""
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error
