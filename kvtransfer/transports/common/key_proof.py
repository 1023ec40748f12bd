"""How both ends of a new page connection prove the key that ReceiverHello brought, without sockets.

    sender     hello + 32 random bytes                     -->
               <--   32 random bytes + proof of the key        receiver
    sender     proof of the key                            -->
               frames, plain or encrypted

A proof is an HMAC-SHA256 over its end's name, the hello and both random numbers, so it cannot be
recorded and used again. The key of the cipher is derived from the same bytes: no two connections
share one.
"""

from __future__ import annotations

import hmac
import secrets

from twolane.kvtransfer.page_lane import KEY_BYTES, PageLaneError, derive
from twolane.kvtransfer.transports.common.frames import FrameError

NONCE_BYTES = PROOF_BYTES = KEY_BYTES


class UnprovenError(FrameError):
    """Receiver's end: the connection could not prove the key."""


class SenderHandshake:
    """Sender's end of one connection, without its socket.

    Send `first`, read `REPLY_BYTES`, send `finish(reply)`.
    """

    REPLY_BYTES = NONCE_BYTES + PROOF_BYTES

    def __init__(self, key: bytes, hello: bytes) -> None:
        self._key = key
        self.first = hello + secrets.token_bytes(NONCE_BYTES)
        self._seen = b""  # hello and both random numbers

    def finish(self, reply: bytes) -> bytes:
        """The sender's proof. Raises `PageLaneError` if the receiver did not prove the key."""
        nonce, proof = reply[:NONCE_BYTES], reply[NONCE_BYTES:]
        self._seen = self.first + nonce
        expected = derive(self._key, b"receiver", self._seen)
        if not hmac.compare_digest(proof, expected):  # guard: page lane
            raise PageLaneError("the receiver did not prove the key that it had sent us")
        return derive(self._key, b"sender", self._seen)

    @property
    def cipher_key(self) -> bytes:
        """After `finish`."""
        return derive(self._key, b"cipher", self._seen)


class ReceiverHandshake:
    """Receiver's end of one connection, without its socket: `take` what came until `is_done`."""

    def __init__(self, key: bytes, hello: bytes) -> None:
        self._key = key
        self._seen = hello
        self._taken = bytearray()
        self._has_replied = False
        self.is_done = False

    @property
    def wanted(self) -> int:
        """Bytes until the next step; never read more, for what follows may be encrypted."""
        return NONCE_BYTES - len(self._taken)  # a proof is as long

    def take(self, data: bytes) -> bytes:
        """Returns what has to be sent now. Raises `UnprovenError` for a wrong proof."""
        self._taken += data
        if self.wanted:
            return b""
        taken, self._taken = bytes(self._taken), bytearray()
        if self._has_replied:
            expected = derive(self._key, b"sender", self._seen)
            if not hmac.compare_digest(taken, expected):  # guard: page lane
                raise UnprovenError("a wrong proof of the key")
            self.is_done = True
            return b""
        self._has_replied = True
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._seen += taken + nonce
        return nonce + derive(self._key, b"receiver", self._seen)

    @property
    def cipher_key(self) -> bytes:
        """Once `is_done`."""
        return derive(self._key, b"cipher", self._seen)
