"""The error message and exit code of a command that cannot start its process or cluster."""

from __future__ import annotations

import click

from twolane.deploy.errors import WrongTopologyError
from twolane.deploy.spec.listeners import UnprotectedStartError, UnusedOptionError

NOT_PROVEN = 5  # the exit code of `NotProvenError`: see `twolane.cli.app`


def code_of(error: Exception) -> int:
    """The exit code: 2 if the command line has to be changed, else 1."""
    wrong = (click.UsageError, UnprotectedStartError, UnusedOptionError, WrongTopologyError)
    return 2 if isinstance(error, wrong) else 1


class StartFailed(click.ClickException):
    """Makes click print the error's text and exit with its `code_of`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.exit_code = code_of(error)  # type: ignore[misc]  # click declares it for the class
