"""Options that several commands share, and how values are printed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from twolane.admin import UNIX, AdminClient, live_sockets, only_socket, socket_of
from twolane.cli.times import Seconds
from twolane.cli.waiting import no_answer, telling
from twolane.client import Client
from twolane.config import (
    ClientConfig,
    check_endpoint,
    columns_from_env,
    context_from_env,
    named_endpoint,
)
from twolane.errors import PermissionDeniedError, UnavailableError
from twolane.rpc.listen import host_of, is_local
from twolane.security.target import find_admin_target
from twolane.service_status import ServiceStatus
from twolane.values import Model

_PIPE_COLUMNS = 400
_NO_SUCH_METHOD = "Method not found"  # what a port answers to clients that is not for them

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_ENDPOINT = click.option(
    "--endpoint",
    metavar="HOST:PORT",
    help="[default: $TWOLANE_ENDPOINT, the current context's, or localhost:7200]",
)
_OPERATOR_ENDPOINT = click.option(
    "--endpoint",
    metavar="HOST:PORT|unix:PATH",
    help="A cluster of yours on this machine, by its clients' HOST:PORT or its operators' socket; "
    "of another machine, HOST:PORT of a router's --admin-port.  [default: $TWOLANE_ENDPOINT, the "
    "context's admin_endpoint, or this machine's cluster]",
)
_META = "twolane.client"  # key in click's context, for the values of the options below


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_META, {})[parameter.name] = value


_QUIET: Any = {"expose_value": False, "callback": _remember}
_ACCESS_OPTIONS = [
    click.option(
        "--context", metavar="NAME", help="A context of `twolane context list`.", **_QUIET
    ),
    click.option(
        "--ca",
        metavar="FILE",
        help="Use TLS, and trust servers certified by this authority.",
        **_QUIET,
    ),
    click.option("--cert", metavar="FILE", help="Your certificate.", **_QUIET),
    click.option("--key", metavar="FILE", help="Its key.", **_QUIET),
]
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_SAMPLING_OPTIONS = [
    click.option("--max-tokens", type=int, help="[default: as many as fit the context]"),
    click.option("--temperature", type=float, help="0 is greedy.  [default: the model's, or 1]"),
    click.option("--top-p", type=float),
    click.option("--top-k", type=int),
    click.option("--seed", type=int, help="The same seed gives the same answer."),
    click.option("--stop", multiple=True, help="Stop at this text; may be repeated."),
    click.option("--model", help="Needed only if the cluster serves several."),
    click.option("--timeout-s", type=Seconds(), help="Cancel the request after this time."),
]


def endpoint_option(command: CommandT) -> CommandT:
    """Add the options for the clients' endpoint and credentials: see `client`."""
    return _with_access(_ENDPOINT(command))


def operator_option(command: CommandT) -> CommandT:
    """Add the options for the operators' socket, or the clients' endpoint and credentials."""
    return _with_access(_OPERATOR_ENDPOINT(command))


def client(endpoint: str | None) -> Client:
    """A client configured by the command's options."""
    return _Client(endpoint, config=ClientConfig(**_said()))


def _said() -> dict[str, Any]:
    said: dict[str, Any] = click.get_current_context().meta.get(_META, {})
    return said


def _with_access(command: CommandT) -> CommandT:
    for option in reversed(_ACCESS_OPTIONS):
        command = option(command)
    return command


class _Client(Client):
    """Says so while no router answers a short call."""

    def models(self) -> list[Model]:
        with telling(no_answer):
            return super().models()

    def status(self, submission_ids: Sequence[str] = ()) -> ServiceStatus:
        with telling(no_answer):
            return super().status(submission_ids)


class _Operator(AdminClient):
    """Says so while a router does not answer."""

    def _call(self, method: Any, request: object, within_s: float | None = None) -> Any:
        with telling(no_answer):
            return super()._call(method, request, within_s)


def admin_client(endpoint: str | None) -> AdminClient | None:
    """The operator's client for `--endpoint` or else $TWOLANE_ENDPOINT; if neither is set, for the
    context's admin_endpoint, or this machine's cluster. None: a HOST:PORT is named at which no
    cluster of this user here has its clients, or a context without an admin_endpoint, or no cluster
    runs here."""
    named = endpoint or named_endpoint()
    if named is None:
        return _operator_of_context()
    found = named if named.startswith(UNIX) else None
    if found is None and _said().keys().isdisjoint({"cert", "context"}):
        found = socket_of(check_endpoint(named))
    return _Operator(found) if found is not None else None


def operator_at_port(endpoint: str | None) -> AdminClient | None:
    """As `operator`, where `--endpoint` is a router's --admin-port, which a certificate is shown
    to. None: it is where clients connect."""
    if endpoint is None or _said().keys().isdisjoint({"cert", "context"}):
        return None
    with client(endpoint) as connected:
        try:
            connected.status()
        except UnavailableError as error:
            if _NO_SUCH_METHOD not in error.message:
                raise
            return operator(endpoint)
    return None


def operator(endpoint: str | None) -> AdminClient:
    """As `admin_client`; another HOST:PORT that `--endpoint` names is a router's --admin-port.
    Raises `PermissionDeniedError` where nothing names one, and `UnavailableError` if no cluster
    runs here."""
    admin = admin_client(endpoint)
    if admin is not None:
        return admin
    said, named = _said(), endpoint or named_endpoint()
    if endpoint is not None and (said or not is_local(host_of(endpoint))):
        return _Operator(endpoint, config=ClientConfig(**said))
    if named is None and not (said.get("context") or context_from_env()):
        only_socket()  # raises: there is none
    here = f", and no cluster of yours on this machine has its clients at {named}" if named else ""
    raise PermissionDeniedError(
        f"this is for operators{here}: on a router's machine leave --endpoint and TWOLANE_ENDPOINT "
        "out, or name where the cluster's clients connect; from another machine, name HOST:PORT of "
        "a router's --admin-port, with --ca, --cert and --key"
    )


def _operator_of_context() -> AdminClient | None:
    config = ClientConfig(**_said())
    if find_admin_target(None, config) is not None:
        return _Operator(config=config)
    if config.context or context_from_env():
        return None
    return _Operator(config=config) if live_sockets() else None


def sampling_options(command: CommandT) -> CommandT:
    """Add the options that `request_options` reads."""
    for option in reversed(_SAMPLING_OPTIONS):
        command = option(command)
    return command


def request_options(given: Mapping[str, Any]) -> Any:
    """The options that the user set, as keywords of `generate` and `stream`."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "model", "timeout_s")
    return {name: given[name] for name in names if given[name] not in (None, ())}


def console() -> Console:
    """A terminal, as wide as it is; a pipe, where no line is broken, unless $COLUMNS says where."""
    found = Console(highlight=False)
    is_said = columns_from_env() and found.width > 0
    if not (found.is_terminal or is_said):
        found.width = _PIPE_COLUMNS
    elif found.width < 1:
        found.width = shutil.get_terminal_size().columns
    return found


def emit(what: RenderableType) -> None:
    """Print it; into a pipe without the spaces that end lines."""
    out = console()
    if out.is_terminal:
        out.print(what)
        return
    with out.capture() as captured:
        out.print(what)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_json(value: Any, *, indent: int | None = 2, schema: str = "") -> None:
    """Print a value of twolane's types as JSON, on one line if `indent` is None. Epochs become
    strings, because they do not fit into a JavaScript number."""
    plain = _plain(value)
    if schema:
        plain = {"schema": schema, **plain}
    click.echo(json.dumps(plain, indent=indent))


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
