"""`twolane chat`: a conversation."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from twolane.cli.common import client, console, endpoint_option, request_options, sampling_options
from twolane.cli.waiting import no_token, telling_of_the_first
from twolane.client import Stream
from twolane.errors import InvalidRequestError, OverloadedError, TwolaneError
from twolane.values import Message

with contextlib.suppress(ImportError):  # not on every platform
    import readline  # noqa: F401  its import gives `input` line editing and a history


@click.command()
@click.option("--system", help="The system message, before the first turn.")
@sampling_options
@endpoint_option
def chat(*, system: str | None, endpoint: str | None, **given: Any) -> None:
    """Chat with the model. An empty line, /quit or Ctrl-D ends the chat; Ctrl-C stops an answer."""
    options = request_options(given)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    with client(endpoint) as connected:
        names = ", ".join(model.name for model in connected.models())
        console().print(f"[dim]{names} · /clear forgets the conversation, /quit ends it[/]")
        while (line := _ask()) not in ("", "/quit"):
            if line == "/clear":
                messages = messages[:1] if system else []
                continue
            messages.append({"role": "user", "content": line})
            try:
                with connected.stream(messages=messages, **options) as stream:
                    answer = _show(stream)
            except (InvalidRequestError, OverloadedError) as error:  # the chat can continue
                click.secho(str(error), fg="red", err=True)
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _ask() -> str:
    try:
        return str(input("> ")).strip()
    except EOFError:
        click.echo()
        return ""
    except UnicodeDecodeError:
        raise InvalidRequestError("input is not UTF-8") from None


def _show(stream: Stream) -> str:
    """Print the answer as it is generated. Ctrl-C stops it and keeps the text so far."""
    parts = []
    end = None
    try:
        for chunk in telling_of_the_first(stream, no_token):
            parts.append(chunk.text)
            click.echo(chunk.text, nl=False)
            end = chunk.finish_reason
    except KeyboardInterrupt:
        stream.cancel()
        click.secho(" …", dim=True, nl=False)
    except TwolaneError:
        if any(parts):  # print the error on a new line
            click.echo()
        raise
    click.echo()
    if end == "length":  # the answer was cut off
        click.secho("(cut off at its length; --max-tokens sets it)", dim=True, err=True)
    return "".join(parts)
