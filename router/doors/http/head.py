"""Decides by a request's head whether it is accepted, before any of its body is read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case

_VERSIONS = ("1.0", "1.1")
_CHARSET = re.compile(rb"""charset\s*=\s*["']?([^"';\s]*)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer in place of the application's, after which the connection is closed."""

    status: int
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """The body as described by the head. `n_bytes` is None for a chunked body."""

    n_bytes: int | None = 0

    @property
    def is_empty(self) -> bool:
        return self.n_bytes == 0


def announced_body(headers: Headers) -> Body:
    """The body that the head announces. The parser has already refused contradictory heads."""
    n_bytes = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return Body(None)
        if name == b"content-length":
            n_bytes = int(value)
    return Body(n_bytes)


def refusal_of_head(version: str, headers: Headers) -> Refusal | None:
    """The refusal of a request that no path of this door accepts; None if there is no reason."""
    if version not in _VERSIONS:
        return Refusal(505, f"HTTP/{version} is not supported; use HTTP/1.1")
    for name, value in headers:
        if name == b"expect" and value.strip().lower() != b"100-continue":
            return Refusal(417, f"Expect is {_shown(value)}; it may only be 100-continue")
    return None


def refusal_of_body(headers: Headers, body: Body, max_bytes: int) -> Refusal | None:
    """The refusal of a body that is not plain JSON in UTF-8 within bounds; None if it is.

    The content type must be JSON's: a web page in a browser cannot send that here without a CORS
    preflight, which is never granted.
    """
    named = dict(headers)
    encoding = named.get(b"content-encoding", b"identity")
    if encoding.strip().lower() != b"identity":
        return Refusal(415, f"Content-Encoding is {_shown(encoding)}; send it without")
    kind, _, parameters = named.get(b"content-type", b"not given").partition(b";")
    if kind.strip().lower() != b"application/json":
        shown = _shown(kind.strip().lower())
        return Refusal(415, f"the content type is {shown}; it must be application/json")
    charset = _CHARSET.search(parameters)
    if charset and charset[1].lower() not in (b"utf-8", b"utf8"):
        return Refusal(415, f"the charset is {_shown(charset[1])}; it must be utf-8")
    if body.n_bytes is not None and body.n_bytes > max_bytes:
        return too_large(body.n_bytes, max_bytes)
    return None


def too_large(n_bytes: int, max_bytes: int) -> Refusal:
    text = f"the body has {n_bytes} bytes or more; it must be at most {max_bytes}"
    return Refusal(413, text)


def _shown(value: bytes) -> str:
    return value[:100].decode("latin-1")
