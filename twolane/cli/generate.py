"""`twolane generate "…"`: one answer, as it is written."""

from __future__ import annotations

import sys
from typing import Any

import click

from twolane.cli.common import (
    endpoint_option,
    json_option,
    print_json,
    request_options,
    sampling_options,
)
from twolane.client import Client


@click.command()
@click.argument("prompt")
@sampling_options
@click.option("--no-stream", is_flag=True, help="Print the answer when it is whole.")
@json_option
@endpoint_option
def generate(
    prompt: str, *, no_stream: bool, as_json: bool, endpoint: str | None, **given: Any
) -> None:
    """Let the model go on from PROMPT.

    `-` reads it from standard input.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    options = request_options(given)
    with Client(endpoint) as client:
        if as_json:
            print_json(client.generate(prompt, **options))
        elif no_stream:
            click.echo(client.generate(prompt, **options).text)
        else:
            with client.stream(prompt, **options) as stream:
                for chunk in stream:
                    click.echo(chunk.text, nl=False)
            click.echo()
