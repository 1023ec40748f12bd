"""`twolane completion`, and the completion of workers' names."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from twolane.admin import AdminClient
from twolane.config import ClientConfig
from twolane.errors import TwolaneError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TWOLANE_COMPLETE"
_PATIENCE_S = 0.5  # timeout of a status call, because the user waits at the prompt


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the shell script that completes commands, options and workers at Tab.

    The default shell is that of $SHELL.
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell)
    if kind is None or shell not in SHELLS:
        known = ", ".join(SHELLS)
        raise click.UsageError(f"no completion for {shell or 'this shell'}: name one of {known}")
    click.echo(kind(context.find_root().command, {}, "twolane", VARIABLE).source())


def workers(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names of the workers of this machine's cluster; empty if there is no cluster."""
    config = ClientConfig(connect_timeout_s=_PATIENCE_S, call_timeout_s=_PATIENCE_S)
    try:
        with AdminClient(config=config) as admin:
            here = [worker for worker in admin.status().workers if worker.is_here]
    except TwolaneError:  # no cluster, several, or none that answers: nothing to complete
        return []
    return [
        CompletionItem(worker.worker_id, help=", ".join(worker.roles))
        for worker in here
        if worker.worker_id.startswith(incomplete)
    ]
