"""`twolane up`: becomes the launcher of `twolane.deploy`, which needs the extra `[serve]`."""

from __future__ import annotations

import itertools
import os
import sys

import click

from twolane.testing.extras import missing_for_serving


@click.command(
    add_help_option=False,  # the launcher parses its own options and prints their help
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def up(arguments: tuple[str, ...]) -> None:
    """Start a cluster on this machine and keep it up until Ctrl-C."""
    if not {"-h", "--help"} & {*arguments}:  # the help needs no extra
        missing = missing_for_serving(_launcher(arguments), _said(arguments, "--engine"))
        if missing is not None:
            raise click.ClickException(missing)
    # -P, and the variable for its children, so that a user's folder `deploy` is not imported
    command = [sys.executable, "-P", "-m", "twolane.deploy.up", *arguments]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, "PYTHONSAFEPATH": "1"})


def _launcher(arguments: tuple[str, ...]) -> str | None:
    """The launcher set by `arguments`; None if they set none, but a topology may."""
    of_a_file = any(argument.partition("=")[0] == "--topology" for argument in arguments)
    return _said(arguments, "--launcher") or (None if of_a_file else "ray")


def _said(arguments: tuple[str, ...], name: str) -> str | None:
    for option, value in itertools.pairwise((*arguments, "")):
        if option == name:
            return value
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
    return None
