"""The frames of a tcp or unix socket, from sender to receiver: little-endian, 32 bytes each.

    hello   "T2KV" version kind=1  sender epoch   receiver epoch  page bytes  digest  first, once
    pages   "T2KV" version kind=2  generation     payload bytes   first page  pages   then the bytes
    ring    "T2KV" version kind=3  slots          address bytes   slot pages  0       then its text
    slot    "T2KV" version kind=4  generation     slot            first page  pages
    keyed   as hello, kind=5: a proof of the key follows, then frames
    encrypted  as hello, kind=6: a proof of the key follows, then frames in encrypted records

`first page` is an index into the pages of the grant. Ring and slot belong to the shm transport
between pools of devices: bytes lie in slots of the sender's memory, and the receiver answers each
slot with its number (4 bytes) when it no longer reads it. Any other bytes close the connection:
after a bad frame it is not known where the next one begins.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from twolane.kvtransfer.page_lane import PageLane

MAGIC = b"T2KV"
VERSION = 1
HELLO, PAGES, RING, SLOT, KEYED_HELLO, ENCRYPTED_HELLO = 1, 2, 3, 4, 5, 6
HELLO_KINDS = {
    PageLane.PLAIN: HELLO,
    PageLane.KEYED: KEYED_HELLO,
    PageLane.ENCRYPTED: ENCRYPTED_HELLO,
}
DIGEST_CODES = {"": 0, "xxh3": 1, "mix64": 2}
MAX_ADDRESS_BYTES = 4096
MAX_SLOTS = 1024
MAX_PAYLOAD_BYTES = 1 << 30
_HEAD = struct.Struct("<4sHHQQII")
HEAD_BYTES = _HEAD.size
_FREED = struct.Struct("<I")
FREED_BYTES = _FREED.size


class FrameError(Exception):
    """The bytes are not a valid frame."""


@dataclass(frozen=True, slots=True)
class Hello:
    sender_epoch: int
    receiver_epoch: int
    page_bytes: int
    digest: str = "xxh3"  # of the checksums that chunks will carry; empty: none
    lane: PageLane = PageLane.PLAIN

    def pack(self) -> bytes:
        kind, digest = HELLO_KINDS[self.lane], DIGEST_CODES[self.digest]
        return _HEAD.pack(
            MAGIC, VERSION, kind, self.sender_epoch, self.receiver_epoch, self.page_bytes, digest
        )


@dataclass(frozen=True, slots=True)
class Pages:
    """Head of a frame with `n_pages` pages; `payload_bytes` of content follow."""

    generation: int
    payload_bytes: int
    first: int
    n_pages: int

    def pack(self) -> bytes:
        return _HEAD.pack(
            MAGIC, VERSION, PAGES, self.generation, self.payload_bytes, self.first, self.n_pages
        )


@dataclass(frozen=True, slots=True)
class RingAt:
    """Head of a frame with the address of the sender's slots; `address_bytes` of text follow."""

    n_slots: int
    address_bytes: int
    slot_pages: int

    def pack(self) -> bytes:
        return _HEAD.pack(
            MAGIC, VERSION, RING, self.n_slots, self.address_bytes, self.slot_pages, 0
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """`n_pages` pages are in that slot of the sender's ring."""

    generation: int
    slot: int
    first: int
    n_pages: int

    def pack(self) -> bytes:
        return _HEAD.pack(
            MAGIC, VERSION, SLOT, self.generation, self.slot, self.first, self.n_pages
        )


Frame = Hello | Pages | RingAt | Slot


def pack_freed(slot: int) -> bytes:
    """From receiver to sender: the slot may be filled again."""
    return _FREED.pack(slot)


def unpack_freed(raw: bytes | bytearray) -> int:
    slot: int = _FREED.unpack(raw)[0]
    return slot


def unpack(head: bytes | bytearray) -> Frame:
    """Raises `FrameError`. The caller, who knows page sizes, checks the numbers."""
    magic, version, kind, a, b, c, d = _HEAD.unpack(head)
    if magic != MAGIC:
        raise FrameError(f"magic {magic!r}")
    if version != VERSION:
        raise FrameError(f"version {version}; here {VERSION}")
    for lane, its_kind in HELLO_KINDS.items():
        if kind == its_kind:
            return Hello(a, b, c, _digest_of(d), lane)
    if kind == RING:
        if not (1 <= a <= MAX_SLOTS and 1 <= b <= MAX_ADDRESS_BYTES and c >= 1):
            raise FrameError(f"a ring of {a} slots of {c} pages, {b} bytes of address")
        return RingAt(a, b, c)
    if kind == SLOT:
        return Slot(a, b, c, d)
    if kind != PAGES:
        raise FrameError(f"kind {kind}")
    if not 1 <= b <= MAX_PAYLOAD_BYTES or d < 1:
        raise FrameError(f"{d} pages in {b} bytes")
    return Pages(a, b, c, d)


def _digest_of(code: int) -> str:
    for name, known in DIGEST_CODES.items():
        if known == code:
            return name
    raise FrameError(f"digest {code}")
