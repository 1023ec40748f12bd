"""`twolane models`."""

from __future__ import annotations

import click

from twolane.cli.common import client, emit, endpoint_option, json_option, print_json
from twolane.cli.rows import Rows

_FINGERPRINT_SHOWN = 12  # characters


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
    table = Rows(("model", "fingerprint"), ("context", "vocabulary"))
    for model in served:
        numbers = str(model.max_context_tokens), str(model.vocab_size)
        table.add_row(model.name, model.fingerprint[:_FINGERPRINT_SHOWN], *numbers)
    emit(table)
