"""`twolane up`: becomes the launcher, which is a package of its own (extra `[serve]`)."""

from __future__ import annotations

import importlib.util
import os
import sys

import click


@click.command(
    add_help_option=False,  # the launcher knows its own options, and their help
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def up(arguments: tuple[str, ...]) -> None:
    """Start a cluster on this machine and keep it up until Ctrl-C."""
    for module in ("ray", "torch", "grpc_health"):
        if importlib.util.find_spec(module) is None:
            raise click.ClickException(
                f"serving needs {module}, which is not installed: pip install 'twolane[serve]'"
            )
    command = [sys.executable, "-m", "deploy.up", *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)
