"""Options that several commands share, and how values are printed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from rich.console import Console

from twolane.admin import UNIX, AdminClient, live_sockets
from twolane.client import Client
from twolane.config import ClientConfig, context_from_env, named_endpoint

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_ENDPOINT = click.option(
    "--endpoint",
    metavar="HOST:PORT",
    help="[default: $TWOLANE_ENDPOINT, the current context's, or localhost:7200]",
)
_OPERATOR_ENDPOINT = click.option(
    "--endpoint",
    metavar="unix:PATH",
    help="The operator's socket.  [default: $TWOLANE_ENDPOINT, or that of this machine's cluster]",
)
_META = "twolane.client"  # of click's context: what the options below say


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_META, {})[parameter.name] = value


_QUIET: Any = {"expose_value": False, "callback": _remember}
_ACCESS_OPTIONS = [
    click.option("--context", metavar="NAME", help="One of `twolane context list`.", **_QUIET),
    click.option("--ca", metavar="FILE", help="Speak TLS to a server of this authority.", **_QUIET),
    click.option("--cert", metavar="FILE", help="Your certificate.", **_QUIET),
    click.option("--key", metavar="FILE", help="Its key.", **_QUIET),
]
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")

_SAMPLING_OPTIONS = [
    click.option("--max-tokens", type=int, help="[default: what fits]"),
    click.option(
        "--temperature", type=float, help="0 is greedy.  [default: the model's own, or 1]"
    ),
    click.option("--top-p", type=float),
    click.option("--top-k", type=int),
    click.option("--seed", type=int, help="The same seed gives the same answer."),
    click.option("--stop", multiple=True, help="Stop at this text; may be repeated."),
    click.option("--model", help="Needed only where the cluster has several."),
    click.option("--timeout-s", type=float, help="Give up after so long."),
]


def endpoint_option(command: CommandT) -> CommandT:
    """Where clients come in, and what is shown there: see `client`."""
    return _with_access(_ENDPOINT(command))


def operator_option(command: CommandT) -> CommandT:
    """The operators' socket, or where clients come in."""
    return _with_access(_OPERATOR_ENDPOINT(command))


def client(endpoint: str | None) -> Client:
    """With what the command's options say."""
    return Client(endpoint, config=ClientConfig(**_said()))


def _said() -> dict[str, Any]:
    said: dict[str, Any] = click.get_current_context().meta.get(_META, {})
    return said


def _with_access(command: CommandT) -> CommandT:
    for option in reversed(_ACCESS_OPTIONS):
        command = option(command)
    return command


def admin_client(endpoint: str | None) -> AdminClient | None:
    """The operator's client of what `--endpoint` or else $TWOLANE_ENDPOINT names; of this machine's
    cluster, if neither does. None: a clients' door is named, or nothing and no cluster is here."""
    named = endpoint or named_endpoint()
    if named is None and ("context" in _said() or context_from_env()):
        return None
    if named is None:
        return AdminClient() if live_sockets() else None
    return AdminClient(named) if named.startswith(UNIX) else None


def sampling_options(command: CommandT) -> CommandT:
    """Add the options that `request_options` reads."""
    for option in reversed(_SAMPLING_OPTIONS):
        command = option(command)
    return command


def request_options(given: Mapping[str, Any]) -> Any:
    """Those that the user gave, as keywords of `generate` and `stream`."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "model", "timeout_s")
    return {name: given[name] for name in names if given[name] not in (None, ())}


def console() -> Console:
    return Console(highlight=False)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One value of ours as JSON; `indent` None: in one line. Epochs are strings: they do not fit a
    JavaScript number."""
    click.echo(json.dumps(_plain(value), indent=indent))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if "epoch" in parts:
            parts["epoch"] = str(parts["epoch"])
        return _plain(parts)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
