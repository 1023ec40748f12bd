"""`python -m twolane.deploy drain`: a hook before the end of a pod whose agent gets no signal."""

from __future__ import annotations

from pathlib import Path

import click

from twolane.deploy.agent.asked_drain import drain_below
from twolane.deploy.cli.seconds import Seconds


@click.command()
@click.option(
    "--state-dir",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Of an agent, or a folder with such folders.",
)
@click.option(
    "--drain-s",
    type=Seconds(),
    required=True,
    help="For up to so long its processes may finish their requests.",
)
def drain(*, folder: Path, drain_s: float) -> None:
    """Let the processes of this machine's agents finish and end. Nothing starts there any more."""
    left = drain_below(folder, drain_s)
    if left:
        raise click.ClickException(f"not ended in time: {', '.join(map(str, left))}")
