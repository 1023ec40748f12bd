"""`twolane generate "…"`: prints one answer as it is generated."""

from __future__ import annotations

import sys
from typing import Any

import click

from twolane.cli.common import (
    client,
    endpoint_option,
    json_option,
    print_json,
    request_options,
    sampling_options,
)
from twolane.cli.waiting import no_token, telling, telling_of_the_first
from twolane.client import Stream
from twolane.errors import InvalidParameterError, InvalidRequestError, TwolaneError


@click.command()
@click.argument("prompt", required=False)
@click.option("--token-ids", metavar="1,2,3", help="The prompt's tokens, instead of PROMPT.")
@sampling_options
@click.option("--no-stream", is_flag=True, help="Print the answer when it is complete.")
@json_option
@endpoint_option
def generate(
    prompt: str | None,
    *,
    token_ids: str | None,
    no_stream: bool,
    as_json: bool,
    endpoint: str | None,
    **given: Any,
) -> None:
    """Generate the continuation of PROMPT.

    With `-`, the prompt is read from standard input.
    """
    if prompt is None and token_ids is None:
        raise click.UsageError("Missing argument 'PROMPT'.")
    if prompt == "-":
        prompt = _read_stdin()
    options = request_options(given)
    if token_ids is not None:
        options["token_ids"] = _parse(token_ids)
    with client(endpoint) as connected:
        if as_json or no_stream:
            with telling(lambda: "the answer is not complete yet"):
                answer = connected.generate(prompt, **options)
            if as_json:
                print_json(answer, indent=None)
            else:
                click.echo(answer.text)
        else:
            with connected.stream(prompt, **options) as stream:
                _show(stream)


def _show(stream: Stream) -> None:
    """Print the answer as it is generated, and a newline however it ends."""
    has_printed = False
    try:
        for chunk in telling_of_the_first(stream, no_token):
            click.echo(chunk.text, nl=False)
            has_printed = has_printed or bool(chunk.text)
    except TwolaneError:
        if has_printed:
            click.echo()
        raise
    click.echo()


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"input is not UTF-8 (byte {error.start})", field="prompt"
        ) from None


def _parse(token_ids: str) -> list[int]:
    try:
        return [int(part) for part in token_ids.split(",")]
    except ValueError:
        raise InvalidParameterError("token_ids", token_ids, "like 1,2,3") from None
