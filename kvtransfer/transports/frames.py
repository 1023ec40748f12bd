"""What goes over a tcp or unix socket, from sender to receiver only. Little-endian, 32 bytes each.

    hello   "T2KV" version kind=1  sender epoch   receiver epoch  page bytes  0       first, once
    pages   "T2KV" version kind=2  generation     payload bytes   first page  pages   then the bytes

`first page` is an index into the pages of the grant. Whatever is not exactly so closes the
connection: after a bad frame nothing tells where the next one begins.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = b"T2KV"
VERSION = 1
HELLO, PAGES = 1, 2
MAX_PAYLOAD_BYTES = 1 << 30
_HEAD = struct.Struct("<4sHHQQII")
HEAD_BYTES = _HEAD.size


class FrameError(Exception):
    """The bytes are no frame of ours."""


@dataclass(frozen=True, slots=True)
class Hello:
    sender_epoch: int
    receiver_epoch: int
    page_bytes: int

    def pack(self) -> bytes:
        return _HEAD.pack(
            MAGIC, VERSION, HELLO, self.sender_epoch, self.receiver_epoch, self.page_bytes, 0
        )


@dataclass(frozen=True, slots=True)
class Pages:
    """Head of a frame of `n_pages` pages; `payload_bytes` of content follow."""

    generation: int
    payload_bytes: int
    first: int
    n_pages: int

    def pack(self) -> bytes:
        return _HEAD.pack(
            MAGIC, VERSION, PAGES, self.generation, self.payload_bytes, self.first, self.n_pages
        )


def unpack(head: bytes | bytearray) -> Hello | Pages:
    """Raises `FrameError`. Numbers are checked against each other by whoever knows page sizes."""
    magic, version, kind, a, b, c, d = _HEAD.unpack(head)
    if magic != MAGIC:
        raise FrameError(f"magic {magic!r}")
    if version != VERSION:
        raise FrameError(f"version {version}; here {VERSION}")
    if kind == HELLO:
        return Hello(a, b, c)
    if kind != PAGES:
        raise FrameError(f"kind {kind}")
    if not 1 <= b <= MAX_PAYLOAD_BYTES or d < 1:
        raise FrameError(f"{d} pages in {b} bytes")
    return Pages(a, b, c, d)
