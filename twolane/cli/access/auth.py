"""`twolane auth`: API keys, and the caller's identity at a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twolane.cli.common import client, console, endpoint_option, json_option, print_json
from twolane.cli.rows import Rows
from twolane.cli.times import Duration
from twolane.errors import InvalidParameterError, InvalidRequestError
from twolane.prompts import MAX_PRIORITY
from twolane.security.identity import Role

if TYPE_CHECKING:
    from twolane.security.keys import ApiKey, TenantLimits

_POSITIVE = click.FloatRange(min=0, min_open=True)
_AT_LEAST_ONE = click.IntRange(min=1)

keys_option = click.option(
    "--keys",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("keys.yaml"),
    show_default=True,
    help="The key file that `twolane up --keys` reads.",
)


@click.group()
def auth() -> None:
    """Create, list and revoke API keys."""


@auth.command("create-key")
@click.option(
    "--tenant",
    default="",
    help="Tenant that requests with this key belong to; required for clients.",
)
@click.option(
    "--role",
    type=click.Choice(["client", "viewer", "operator"]),
    default="client",
    show_default=True,
    help="Viewers can read metrics and status; operators can also drain and fence.",
)
@click.option(
    "--expires-in",
    "expires_in_s",
    metavar="30d",
    type=Duration(least_s=60),
    help="Lifetime in days, hours (12h) or minutes (90m).",
)
@click.option(
    "--weight",
    type=_POSITIVE,
    help="The tenant's share of a full cluster, relative to others.  [default: 1]",
)
@click.option("--requests-per-s", type=_POSITIVE, help="The tenant's quota of requests per second.")
@click.option(
    "--tokens-per-min",
    type=_AT_LEAST_ONE,
    help="The tenant's quota of tokens, prompts and answers.",
)
@click.option("--concurrent", type=_AT_LEAST_ONE, help="The tenant's quota of concurrent requests.")
@click.option(
    "--max-priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    help="The highest priority that the tenant may use.",
)
@keys_option
@json_option
def create_key(
    *,
    tenant: str,
    role: str,
    expires_in_s: float | None,
    path: Path,
    as_json: bool,
    **limits: float | None,
) -> None:
    """Create a key. It is shown only once: the file stores only its hash."""
    from twolane.security.key_edit import create_key, revoke_key
    from twolane.security.keys import NAME_BOUND, is_name

    if tenant and not is_name(tenant):
        raise InvalidParameterError("tenant", tenant, NAME_BOUND)
    if role == Role.CLIENT and not tenant:
        text = "a client's key is for a tenant: name it with --tenant"
        raise InvalidRequestError(text, field="tenant")
    if role != Role.CLIENT and tenant:
        text = f"a key of the role {role} is for no tenant: leave --tenant out"
        raise InvalidRequestError(text, field="tenant")
    given = {name: value for name, value in limits.items() if value is not None}
    with _naming_faults():
        shown, key = create_key(
            path,
            tenant,
            role=Role(role),
            expires_in=None if expires_in_s is None else timedelta(seconds=expires_in_s),
            limits=given,
        )
    try:
        if as_json:
            print_json({"key": shown, **_fields(key)})
        else:
            click.echo(shown)
    except OSError:
        try:
            with _naming_faults():
                revoke_key(path, key.id)
            click.echo(f"key {key.id} could not be shown: it is revoked again", err=True)
        except (OSError, InvalidRequestError):  # the key file's disk is as full
            command = shlex.join(["twolane", "auth", "revoke", key.id, "--keys", str(path)])
            click.echo(f"key {key.id} could not be shown, nor revoked: {command}", err=True)
        raise
    if as_json:
        return
    whose = tenant or f"role {role}"
    click.echo(
        f"key {key.id} of {whose} was added to {path}; it is shown only this once",
        err=True,
    )


@auth.command("list")
@keys_option
@json_option
def list_keys(*, path: Path, as_json: bool) -> None:
    """List the keys of a file, and the quotas of their tenants."""
    from twolane.security.keys import TenantLimits, read_keys

    with _naming_faults():
        ring = read_keys(path)
    if as_json:
        tenants = {name: _limits(limits) for name, limits in ring.tenants.items()}
        print_json({"keys": [_fields(key) for key in ring.keys], "tenants": tenants})
        return
    rows = Rows(("key", "role", "tenant", "state", "expires"), ())
    for key in ring.keys:
        rows.add_row(key.id, key.role, key.tenant, key.state(datetime.now(UTC)), _day(key.expires))
    console().print(rows)
    names = sorted({key.tenant for key in ring.keys if key.tenant} | set(ring.tenants))
    if names:
        click.echo()
        quotas = Rows(("tenant",), ("weight", "requests/s", "tokens/min", "concurrent", "priority"))
        for name in names:
            limits = _limits(ring.tenants.get(name, TenantLimits()))
            quotas.add_row(name, *("-" if n is None else _figure(n) for n in limits.values()))
        console().print(quotas)


@auth.command()
@click.argument("key_id", metavar="ID")
@keys_option
@json_option
def revoke(key_id: str, *, path: Path, as_json: bool) -> None:
    """Revoke key ID. Servers that read the file refuse it within a second."""
    from twolane.security.key_edit import revoke_key

    with _naming_faults():
        key = revoke_key(path, key_id)
    if as_json:
        print_json(_fields(key))
    else:
        click.echo(f"key {key.id} of {key.tenant or key.role} is revoked")


@auth.command()
@json_option
@endpoint_option
def whoami(*, as_json: bool, endpoint: str | None) -> None:
    """Show your identity at the cluster, and what is left of your quotas."""
    with client(endpoint) as connected:
        caller = connected.who_am_i()
    if as_json:
        print_json(caller)
        return
    name = f" by {caller.name}" if caller.name else ", without a key or certificate"
    click.echo(
        f"{caller.role} of tenant {caller.tenant}{name}" if caller.tenant else caller.role + name
    )
    if caller.quotas:
        rows = Rows(("quota",), ("limit", "remaining", "resets in"))
        for quota in caller.quotas:
            figures = (_figure(quota.limit), f"{quota.remaining:.0f}", f"{quota.reset_s:.1f} s")
            rows.add_row(quota.name, *figures)
        console().print(rows)


@contextmanager
def _naming_faults() -> Iterator[None]:
    """A block that raises errors in a file or a value as `TwolaneError`s."""
    import msgspec

    from twolane.security.keys import KeyFileError, in_words

    try:
        yield
    except KeyFileError as error:
        raise InvalidRequestError(str(error), field="keys") from error
    except msgspec.ValidationError as error:
        raise InvalidRequestError(in_words(error)) from error


def _fields(key: ApiKey) -> dict[str, Any]:
    """A key's fields that everyone who can read the file may see."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "role": str(key.role),
        "state": key.state(datetime.now(UTC)),
        "created": key.created and key.created.isoformat(),
        "expires": key.expires and key.expires.isoformat(),
    }


def _limits(limits: TenantLimits) -> dict[str, float | None]:
    return {
        "weight": limits.weight,
        "requests_per_s": limits.requests_per_s,
        "tokens_per_min": limits.tokens_per_min,
        "concurrent": limits.concurrent,
        "max_priority": limits.max_priority,
    }


def _figure(value: float) -> str:
    """All digits: `1234567`, `0.5`."""
    return f"{value:.0f}" if value == int(value) else str(value)


def _day(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M")
