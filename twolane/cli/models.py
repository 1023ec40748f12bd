"""`twolane models`."""

from __future__ import annotations

import click
from rich.table import Table

from twolane.cli.common import (
    client,
    console,
    endpoint_option,
    json_option,
    print_json,
)


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
