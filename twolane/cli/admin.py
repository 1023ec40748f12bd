"""`twolane models` and `twolane drain`."""

from __future__ import annotations

import click
from rich.table import Table

from twolane.cli.common import (
    admin_client,
    client,
    console,
    endpoint_option,
    json_option,
    operator_option,
    print_json,
)
from twolane.errors import PermissionDeniedError


@click.command()
@json_option
@endpoint_option
def models(*, as_json: bool, endpoint: str | None) -> None:
    """List the models that the cluster serves."""
    with client(endpoint) as connected:
        served = connected.models()
    if as_json:
        print_json(served)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model")
    table.add_column("context", justify="right")
    table.add_column("vocabulary", justify="right")
    table.add_column("fingerprint")
    for model in served:
        numbers = (str(model.max_context_tokens), str(model.vocab_size))
        table.add_row(model.name, *numbers, model.fingerprint[:12])
    console().print(table)


@click.command()
@click.argument("worker_id", metavar="WORKER")
@click.option("--undo", is_flag=True, help="Give it work again.")
@operator_option
def drain(worker_id: str, *, undo: bool, endpoint: str | None) -> None:
    """Let WORKER finish what it runs, and give it nothing new."""
    admin = admin_client(endpoint)
    if admin is None:
        raise PermissionDeniedError(
            "workers are drained through the operator's socket alone: --endpoint unix:PATH, on the "
            "router's machine (`twolane up` shows it)"
        )
    with admin:
        admin.drain(worker_id, undo=undo)
    click.echo(f"{worker_id} takes work again" if undo else f"{worker_id} drains")
