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

    Keep it to yourself: its last part is a token with which others could act as you. Browsers send
    it only to the router, and it is valid for 12 hours. With an operator's or viewer's API key or
    certificate the page opens without it.
    """
    with operator(endpoint) as admin:
        found = admin.call("OpenConsole", admin_pb2.OpenConsoleRequest())
    if as_json:
        print_message(found)
    else:
        click.echo(f"{found.url}#{found.token}")
