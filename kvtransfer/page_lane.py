"""How the tcp connections that carry pages are protected, and which key each sender gets.

    encrypted   both ends prove a shared key, then every byte is AES-256-GCM
    keyed       both ends prove a shared key, then bytes are plain: for private or encrypted fabrics
    plain       no proof: for the loopback and for clusters that run with --insecure

The receiver draws a secret when it opens its landing, and sends each sender a key of its own in
ReceiverHello, over the control stream (mutual TLS between hosts). How a connection proves it:
`twolane.kvtransfer.transports.common.key_proof`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum

KEY_BYTES = hashlib.sha256().digest_size


class PageLane(StrEnum):
    """What protects the bytes of pages, from the most protection to the least."""

    ENCRYPTED = "encrypted"
    KEYED = "keyed"
    PLAIN = "plain"


class PageLaneError(OSError):
    """Sender's end: the receiver uses another page lane, or could not prove the key in time."""


@dataclass(frozen=True, slots=True)
class ReceiverLane:
    """A landing's page lane. `secret` never leaves this process; empty for `plain`."""

    name: PageLane
    secret: bytes = b""

    @classmethod
    def draw(cls, name: PageLane) -> ReceiverLane:
        """With a new secret."""
        return cls(name, b"" if name is PageLane.PLAIN else secrets.token_bytes(KEY_BYTES))

    def key_for(self, sender_epoch: int) -> bytes:
        """The key of that sender alone; empty for `plain`."""
        if self.name is PageLane.PLAIN:
            return b""
        return derive(self.secret, b"page key", sender_epoch.to_bytes(8, "little"))


@dataclass(frozen=True, slots=True)
class SenderLane:
    """The page lane of one receiver. `key` is empty for `plain`.

    Raises `PageLaneError` for a key of a wrong length.
    """

    name: PageLane
    key: bytes = b""

    def __post_init__(self) -> None:
        wanted = 0 if self.name is PageLane.PLAIN else KEY_BYTES
        if len(self.key) != wanted:
            raise PageLaneError(f"page_lane {self.name}: a key of {len(self.key)} bytes")


PLAIN_RECEIVER, PLAIN_SENDER = ReceiverLane(PageLane.PLAIN), SenderLane(PageLane.PLAIN)


def derive(key: bytes, purpose: bytes, content: bytes) -> bytes:
    """32 bytes that only holders of the key can compute, different for each purpose."""
    return hmac.digest(key, b"twolane page lane 1: " + purpose + b"\0" + content, "sha256")
