"""`twolane context`: named clusters in ~/.config/twolane/config.toml."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from twolane.cli.common import console, json_option, print_json
from twolane.cli.rows import Rows
from twolane.config import context_from_env, contexts_path
from twolane.security.contexts import Context, read_contexts, use_context


@click.group()
def context() -> None:
    """List, choose and show named clusters."""


@context.command("list")
@json_option
def list_contexts(*, as_json: bool) -> None:
    """List the contexts; * is the current one."""
    contexts = read_contexts(contexts_path())
    current = context_from_env() or contexts.current
    if as_json:
        named = {name: _fields(each) for name, each in contexts.named.items()}
        print_json({"current": current, "contexts": named})
        return
    if not contexts.named:
        click.echo(f"there are no contexts: {contexts_path()} names none")
        return
    rows = Rows(("context", "", "endpoint", "shows"), ())
    for name, each in contexts.named.items():
        rows.add_row(name, "*" if name == current else "", each.endpoint, _shows(each))
    console().print(rows)


@context.command()
@click.argument("name")
@json_option
def use(name: str, *, as_json: bool) -> None:
    """Make NAME the default context."""
    use_context(contexts_path(), name)
    if as_json:
        print_json({"current": name})
        return
    click.echo(f"{name} is the current context")


@context.command()
@click.argument("name", required=False)
@json_option
def show(name: str | None, *, as_json: bool) -> None:
    """Show context NAME, or the current one, without its API key."""
    path = contexts_path()
    contexts = read_contexts(path)
    fields = _fields(contexts.find(name or context_from_env() or contexts.current, path))
    if as_json:
        print_json(fields)
        return
    for key, value in fields.items():
        if value:
            click.echo(f"{key} = {value}")


def _fields(each: Context) -> dict[str, Any]:
    fields = dataclasses.asdict(each)
    return fields | {"api_key": "(set)" if each.api_key else ""}


def _shows(each: Context) -> str:
    """The kinds of credentials that a client presents there."""
    shown = ["a certificate"] * bool(each.cert) + ["an API key"] * bool(
        each.api_key or each.token_command
    )
    return " and ".join(shown) or "nothing"
