"""The address of the shared store:

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]
    rediss://…                                             TLS
    redis+sentinel://[USER:PASSWORD@]H1[:PORT],H2,…/SERVICE[/DB]
    rediss+sentinel://…

Query parameters, after a ?: ca, cert and key name PEM files for TLS; sentinel_username and
sentinel_password are for the sentinels. Passwords may be percent-encoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from twolane.rpc.listen import MAX_PORT, join

PORT, SENTINEL_PORT = 6379, 26379
FORMS = "redis://HOST:PORT/DB, rediss://… or redis+sentinel://HOST,HOST/SERVICE"
_FILES = ("ca", "cert", "key")
_OPTIONS = (*_FILES, "sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """A parsed address. `str` and `repr` show no secrets."""

    hosts: tuple[tuple[str, int], ...]  # of the server, or of the sentinels
    service: str = ""  # the service that the sentinels watch; empty without sentinels
    db: int = 0
    has_tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    username: str = ""
    password: str = ""
    sentinel_username: str = ""
    sentinel_password: str = ""

    def __str__(self) -> str:
        scheme = f"redis{'s' * self.has_tls}{'+sentinel' * bool(self.service)}"
        hosts = ",".join(join(host, port) for host, port in self.hosts)
        return f"{scheme}://{hosts}/{self.service or self.db}"

    def __repr__(self) -> str:
        return f"<{self}>"


def without_secrets(text: str) -> str:
    """`text` for display, with the secrets of all addresses in it removed."""
    text = re.sub(r"(?<=://)[^/\s]*@", "…@", text)
    return re.sub(r"(?<=sentinel_password=)[^&\s]*", "…", text)


def parse_address(url: str) -> StoreAddress:
    """Parse an address. Raises ValueError, whose text contains no part of the URL that may be
    secret."""
    scheme, has_scheme, _ = url.partition("://")
    kind, _, how = scheme.partition("+")
    if not has_scheme or kind not in ("redis", "rediss") or how not in ("", "sentinel"):
        raise ValueError(f"store is no address of a Redis; it must be {FORMS}")
    try:
        rest = urlsplit(f"//{url.partition('://')[2]}")
    except ValueError:
        raise ValueError(f"the host of store is none; store must be {FORMS}") from None
    login, _, places = rest.netloc.rpartition("@")
    username, _, password = login.partition(":")
    is_watched = how == "sentinel"
    path = [unquote(part) for part in rest.path.split("/") if part]
    service = path.pop(0) if is_watched and path else ""
    if is_watched and not service:
        raise ValueError("store names no service: redis+sentinel://HOST,HOST/SERVICE")
    if len(path) > 1 or (path and not path[0].isdecimal()):
        raise ValueError(f"the path of store is no number of a database; store must be {FORMS}")
    said = parse_qsl(rest.query, keep_blank_values=True)
    if rest.fragment or not {name for name, _ in said} <= {*_OPTIONS}:
        there_are = ", ".join(_OPTIONS)
        raise ValueError(
            f"store has something else behind its path than {there_are}; in a password, "
            "/ ? # and @ must be percent-encoded"
        )
    options = dict(said)
    has_tls = kind == "rediss"
    if not has_tls and any(options.get(name) for name in _FILES):
        raise ValueError("store names files for TLS: its address must begin with rediss")
    default = SENTINEL_PORT if is_watched else PORT
    return StoreAddress(
        hosts=tuple(_host(place, default) for place in places.split(",")),
        service=service,
        db=int(path[0]) if path else 0,
        has_tls=has_tls,
        username=unquote(username),
        password=unquote(password),
        **options,
    )


def _host(place: str, default: int) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, port = place[1:].partition("]")
        is_fine = bool(bracket) and port[:1] in ("", ":")
        port = port[1:]
    else:
        host, colon, port = place.partition(":")
        is_fine = not colon or bool(port)
    if not (is_fine and host and (not port or port.isdecimal()) and int(port or 1) <= MAX_PORT):
        raise ValueError(f"store names no host and port that could be dialled; it must be {FORMS}")
    return host, int(port) if port else default
