"""A command that cannot start what it was asked for: one message, and its exit code."""

from __future__ import annotations

import click

from twolane.deploy.spec.listeners import UnprotectedStartError


def code_of(error: Exception) -> int:
    """2 for a command line that must be another one, else 1."""
    return 2 if isinstance(error, UnprotectedStartError) else 1


class StartFailed(click.ClickException):
    """Click prints the error's text and exits with `code_of` it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.exit_code = code_of(error)  # type: ignore[misc]  # click declares it for the class
