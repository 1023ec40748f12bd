"""`twolane console`: the address of the page that shows the cluster in a browser."""

from __future__ import annotations

import click

from twolane.cli.common import json_option, operator, operator_option
from twolane.cli.ops.output import print_message
from twolane.v1 import admin_pb2


@click.command()
@json_option
@operator_option
def console(*, as_json: bool, endpoint: str | None) -> None:
    """Print the address of the cluster's page for browsers.

    Whoever opens it acts there as you: it has a token in its last part, which is valid for 12
    hours, and which browsers send to the router alone. With an operator's or viewer's API key or
    certificate the page opens without it.
    """
    with operator(endpoint) as admin:
        found = admin.call("OpenConsole", admin_pb2.OpenConsoleRequest())
    if as_json:
        print_message(found)
    else:
        click.echo(f"{found.url}#{found.token}")
