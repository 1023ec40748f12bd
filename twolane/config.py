"""The client's settings, and the only place in `twolane` that reads the environment."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twolane.errors import InvalidParameterError
from twolane.params import is_number

ENDPOINT_VARIABLE = "TWOLANE_ENDPOINT"
API_KEY_VARIABLE = "TWOLANE_API_KEY"
CONTEXT_VARIABLE = "TWOLANE_CONTEXT"
DEFAULT_ENDPOINT = "localhost:7200"
SOCKET_NAME = "admin.sock"  # for operators, at a router
# For operators, at the controller; a socket's path has at most 107 bytes.
CONTROLLER_SOCKET_NAME = "ctl.sock"
_ENDPOINT_BOUND = f"HOST:PORT, like {DEFAULT_ENDPOINT}"
_MAX_PORT = 65535


def named_endpoint() -> str | None:
    """The value of `TWOLANE_ENDPOINT`; None if it is not set."""
    return os.environ.get(ENDPOINT_VARIABLE) or None


def api_key_from_env() -> str | None:
    """The value of `TWOLANE_API_KEY`; None if it is not set."""
    return os.environ.get(API_KEY_VARIABLE) or None


def context_from_env() -> str | None:
    """The value of `TWOLANE_CONTEXT`; None if it is not set."""
    return os.environ.get(CONTEXT_VARIABLE) or None


def columns_from_env() -> bool:
    """Whether `COLUMNS` says how wide the output is to be."""
    return bool(os.environ.get("COLUMNS"))


def contexts_path() -> Path:
    """The path of the user's file of contexts."""
    return Path("~/.config/twolane/config.toml").expanduser()


def check_api_key(api_key: Any) -> str:
    """Raise `InvalidParameterError` unless the key can be sent. The error does not contain the
    key."""
    if not isinstance(api_key, str) or not (api_key.isascii() and api_key.isprintable()):
        raise InvalidParameterError("api_key", "…", "printable ASCII characters, like tl_…")
    return api_key


def check_endpoint(endpoint: Any) -> str:
    """Raise `InvalidParameterError` unless it is HOST:PORT, several of them separated by commas, or
    unix:PATH. A host may be a name, an IPv4 address, or an IPv6 one in brackets."""
    if not isinstance(endpoint, str):
        raise InvalidParameterError("endpoint", endpoint, _ENDPOINT_BOUND)
    if "," in endpoint:
        for each in endpoint.split(","):
            check_endpoint(each)
        return endpoint
    if endpoint.startswith("unix:"):
        return endpoint
    bound = _ENDPOINT_BOUND
    if "://" in endpoint:
        bound = f"{bound}, without http://: that is the other door"
    host, colon, port = endpoint.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    is_host = bool(host) and "/" not in host and (":" not in host or host.startswith("["))
    if not (colon and is_port and is_host):
        raise InvalidParameterError("endpoint", endpoint, bound)
    return endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """`timeout_s` is the default timeout of a generation; None: no timeout. `call_timeout_s` bounds
    every short call (cancel, models, status, drain). `api_key` is sent with every call; if it is
    None, `TWOLANE_API_KEY` is sent, if set.

    `ca` is the PEM file of the server's certificate authority: with it the connection uses TLS.
    `cert` and `key` are this client's certificate and key. `context` names one in the user's file
    (`twolane.security.contexts`)."""

    api_key: str | None = field(default=None, repr=False)
    ca: str | Path = ""
    cert: str | Path = ""
    key: str | Path = ""
    context: str | None = None
    timeout_s: float | None = None
    connect_timeout_s: float = 5.0
    call_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.api_key is not None:
            check_api_key(self.api_key)
        if self.timeout_s is not None:
            check_seconds("timeout_s", self.timeout_s)
        check_seconds("connect_timeout_s", self.connect_timeout_s)
        check_seconds("call_timeout_s", self.call_timeout_s)


def check_seconds(name: str, value: Any) -> None:
    """Raise `InvalidParameterError` unless `value` is a finite number of seconds above 0."""
    if not is_number(value):
        raise InvalidParameterError(name, value, "a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise InvalidParameterError(name, value, "a number of seconds above 0")
