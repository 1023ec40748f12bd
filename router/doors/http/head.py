"""Whether a request is taken, as its head says, before any of its body is read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case

_VERSIONS = ("1.0", "1.1")
_CHARSET = re.compile(rb"""charset\s*=\s*["']?([^"';\s]*)""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in place of the application's; the connection is closed with it."""

    status: int
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """What the head says of the body. `n_bytes` None: it comes in chunks."""

    n_bytes: int | None = 0

    @property
    def is_empty(self) -> bool:
        return self.n_bytes == 0


def announced_body(headers: Headers) -> Body:
    """The parser has refused what is contradictory."""
    n_bytes = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return Body(None)
        if name == b"content-length":
            n_bytes = int(value)
    return Body(n_bytes)


def refusal_of_head(version: str, headers: Headers) -> Refusal | None:
    """What no path of this door takes."""
    if version not in _VERSIONS:
        return Refusal(505, f"HTTP/{version} is not spoken here; HTTP/1.1 is")
    for name, value in headers:
        if name == b"expect" and value.strip().lower() != b"100-continue":
            return Refusal(417, f"Expect is {_shown(value)}; it may only be 100-continue")
    return None


def refusal_of_body(headers: Headers, body: Body, max_bytes: int) -> Refusal | None:
    """What no path that takes a body takes: anything but plain JSON in UTF-8 within bounds.

    The content type must be JSON's: a page in a browser cannot send that here without asking, and
    nobody here would allow it.
    """
    named = dict(headers)
    encoding = named.get(b"content-encoding", b"identity")
    if encoding.strip().lower() != b"identity":
        return Refusal(415, f"Content-Encoding is {_shown(encoding)}; send the body as it is")
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
