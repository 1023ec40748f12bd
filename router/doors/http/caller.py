"""Who sends a request: found out when its head is there, before any of its body is read."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from twolane.errors import PermissionDeniedError, UnauthenticatedError
from twolane.router.doors.http.head import Headers, Refusal
from twolane.security.access import HTTP_OPEN, HTTP_ROLES
from twolane.security.gate import AUTHORIZATION, Gate
from twolane.security.identity import Identity


def refusal_of_caller(
    gate: Gate, scope: Any, headers: Headers, transport: asyncio.Transport
) -> Refusal | None:
    """None: the caller may go on, and `caller_of` returns his identity, except at paths that are
    open to all. `scope` is the request's, as ASGI has it."""
    if scope["path"] in HTTP_OPEN:
        return None
    shown = {
        name.decode(): value.decode("latin-1")
        for name, value in headers
        if name == AUTHORIZATION.encode()
    }
    certificate = transport.get_extra_info("peercert")
    try:
        caller = gate.admit_http("http", HTTP_ROLES, certificate, shown)
    except UnauthenticatedError as error:
        return Refusal(401, error.message)
    except PermissionDeniedError as error:
        return Refusal(403, error.message)
    scope["state"]["identity"] = caller
    return None


def caller_of(request: Request) -> Identity:
    """Of a request that `refusal_of_caller` has let through."""
    identity: Identity = request.state.identity
    return identity
