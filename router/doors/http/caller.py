"""Authenticates the caller of a request by its head, before any of its body is read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from twolane.errors import PermissionDeniedError, UnauthenticatedError, short
from twolane.router.doors.http.head import Headers, Refusal
from twolane.rpc.listen import is_local
from twolane.security.access import (
    CONSOLE,
    CONSOLE_ACT_ROLES,
    CONSOLE_ACTS,
    CONSOLE_ROLES,
    HTTP_OPEN,
    HTTP_ROLES,
)
from twolane.security.gate import AUTHORIZATION, Gate
from twolane.security.identity import ANONYMOUS, Identity

_OF_NO_SITE = (".localhost", ".internal")  # reserved: RFC 6761, and ICANN's resolution of 2024


@dataclass(frozen=True, slots=True)
class HttpGates:
    """Of the HTTP door. `console` is the gate of the console's paths; None: there is none. `hosts`
    are the names, beside those of the loopback, that a Host header may have; None: any."""

    clients: Gate
    console: Gate | None = None
    hosts: Collection[str] | None = None

    def admit(
        self, path: str, certificate: Mapping[str, Any] | None, shown: Mapping[str, str]
    ) -> Identity:
        """As `Gate.admit_http`."""
        if self.console is None or not path.startswith(CONSOLE):
            return self.clients.admit_http("http", HTTP_ROLES, certificate, shown)
        roles = CONSOLE_ACT_ROLES if path in CONSOLE_ACTS else CONSOLE_ROLES
        return self.console.admit_http("console", roles, certificate, shown)


def refusal_of_caller(
    gates: HttpGates, scope: Any, headers: Headers, transport: asyncio.Transport
) -> Refusal | None:
    """The refusal of a caller; None if it is authorised. `caller_of` then returns its identity,
    except at paths that are open to all. `scope` is the request's ASGI scope."""
    named = dict(headers)
    host = named.get(b"host", b"").decode("latin-1")
    if host and gates.hosts is not None and not _is_ours(host, gates.hosts):
        text = (
            f"Host is {short(host, 100)}; without API keys (--keys) this door answers only to "
            "localhost and 127.0.0.1, as a web page can point any other name here: call it by one "
            "of these, let a proxy send one of these as Host, or use --keys"
        )
        return _denied(gates, text)
    if scope["path"] in HTTP_OPEN:
        return None
    shown = {
        name.decode(): value.decode("latin-1")
        for name, value in headers
        if name == AUTHORIZATION.encode()
    }
    certificate = transport.get_extra_info("peercert")
    try:
        caller = gates.admit(scope["path"], certificate, shown)
    except UnauthenticatedError as error:
        return Refusal(401, error.message)
    except PermissionDeniedError as error:
        return Refusal(403, error.message)
    scope["state"]["identity"] = caller
    origin = named.get(b"origin", b"").decode("latin-1")
    if origin and caller == ANONYMOUS and _is_rebound(origin, transport):
        text = f"a page of {short(origin, 100)} may not ask here without a key (--keys)"
        return _denied(gates, text)
    return None


def _denied(gates: HttpGates, text: str) -> Refusal:
    gates.clients.refused["denied.http"] += 1
    return Refusal(403, text)


def _is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header has one of the names, one of the loopback, or one that no site can
    have, as `host.docker.internal`, by which containers call their host. A page of another site has
    its own name, though that now resolves to this machine (DNS rebinding)."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    return is_local(name) or name.endswith(_OF_NO_SITE) or name in names


def _is_rebound(origin: str, transport: asyncio.Transport) -> bool:
    """Whether a page of another site asks at the loopback: its name now resolves to this machine.
    To the browser that is one origin, so that the content type does not keep it out."""
    try:
        page = urlsplit(origin).hostname or ""
    except ValueError:
        page = ""
    ours = transport.get_extra_info("sockname")
    return is_local(ours[0]) and not (is_local(page) or page.endswith(".localhost"))


def caller_of(request: Request) -> Identity:
    """The caller of a request that `refusal_of_caller` has not refused."""
    identity: Identity = request.state.identity
    return identity
