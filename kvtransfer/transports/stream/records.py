"""How a connection's frames get onto its socket and off it: as they are, or encrypted in records.

    record    length (4 bytes, little-endian) | AES-256-GCM of that many bytes | tag (16 bytes)

The nonce counts the records of the connection, whose key only its ends have, and the length is
authenticated with each: a record that was changed, left out or repeated ends the connection.
OpenSSL computes without the GIL, in pieces that stay in the cache. A record is decrypted into the
pages themselves where it fits; nothing counts as landed before its tag has been checked.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from twolane.kvtransfer.transports.common.frames import FrameError

RECORD_BYTES = 256 * 1024  # of plain text, at most: two buffers of it fit into a core's cache
_DIRECT_BYTES = 32 * 1024  # shorter pieces are copied together before they are encrypted
MOST_VIEWS = 256  # of one `write`, as of one sendmsg
_LENGTH = struct.Struct("<I")
_TAG_BYTES = 16


class Writer(Protocol):
    """Sender's end. Non-blocking."""

    def write(self, views: list[memoryview]) -> int:
        """How many bytes of these `MOST_VIEWS` at most are not needed any more. No views: only send
        what is left over.

        Raises BlockingIOError when the socket takes nothing now.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """Bytes that were taken have not all gone out: `write` again, once the socket is ready."""
        ...


class Reader(Protocol):
    """Receiver's end. Non-blocking."""

    def read_into(self, views: list[memoryview]) -> int:
        """How many bytes are here now, from the beginning of these. 0: the peer hung up.

        Raises BlockingIOError when there is nothing yet, FrameError for what is no record.
        """
        ...

    @property
    def is_ahead(self) -> bool:
        """There is more that the socket does not know of: it will not become readable for it."""
        ...


class PlainWriter:
    """See `Writer`."""

    is_behind = False

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def write(self, views: list[memoryview]) -> int:
        return self._stream.sendmsg(views)


class PlainReader:
    """See `Reader`."""

    is_ahead = False

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def read_into(self, views: list[memoryview]) -> int:
        return self._stream.recvmsg_into(views)[0]


class EncryptedWriter:
    """See `Writer`. Holds one record."""

    def __init__(self, stream: socket.socket, key: bytes) -> None:
        self._stream = stream
        self._cipher = AESGCM(key)
        self._n_records = 0
        self._plain = memoryview(bytearray(RECORD_BYTES))
        self._record = memoryview(bytearray(_LENGTH.size + RECORD_BYTES + _TAG_BYTES))
        self._unsent = self._record[:0]

    @property
    def is_behind(self) -> bool:
        return bool(self._unsent)

    def write(self, views: list[memoryview]) -> int:
        self._flush()
        if not views:
            return 0
        n = self._encrypt(self._next(views))
        with suppress(BlockingIOError):
            self._flush()
        return n

    def _flush(self) -> None:
        while self._unsent:
            self._unsent = self._unsent[self._stream.send(self._unsent) :]

    def _next(self, views: list[memoryview]) -> memoryview:
        """The bytes of the next record: of one long view, or of several short ones."""
        if len(views[0]) >= _DIRECT_BYTES:
            return views[0][:RECORD_BYTES]
        filled = 0
        for view in views:
            if len(view) >= _DIRECT_BYTES or filled + len(view) > RECORD_BYTES:
                break
            self._plain[filled : filled + len(view)] = view
            filled += len(view)
        return self._plain[:filled]

    def _encrypt(self, plain: memoryview) -> int:
        head, end = self._record[: _LENGTH.size], _LENGTH.size + len(plain) + _TAG_BYTES
        _LENGTH.pack_into(head, 0, len(plain))
        into = self._record[_LENGTH.size : end]
        self._cipher.encrypt_into(_nonce(self._n_records), plain, head, into)
        self._n_records += 1
        self._unsent = self._record[:end]
        return len(plain)


class EncryptedReader:
    """See `Reader`. Holds one record."""

    def __init__(self, stream: socket.socket, key: bytes) -> None:
        self._stream = stream
        self._cipher = AESGCM(key)
        self._n_records = 0
        self._record = memoryview(bytearray(_LENGTH.size + RECORD_BYTES + _TAG_BYTES))
        self._filled = 0
        self._plain = memoryview(bytearray(RECORD_BYTES))
        self._unread = self._plain[:0]

    @property
    def is_ahead(self) -> bool:
        return bool(self._unread)

    def read_into(self, views: list[memoryview]) -> int:
        if not self._unread:
            size = self._receive()
            if size is None:
                return 0
            if size <= len(views[0]):
                self._decrypt(size, views[0][:size])
                return size
            self._unread = self._plain[:size]
            self._decrypt(size, self._unread)
        return self._hand_out(views)

    def _receive(self) -> int | None:
        """The length of the record that is here now, all of it. None: the peer hung up."""
        wanted = _LENGTH.size
        while True:
            if self._filled >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._record)
                if not 1 <= size <= RECORD_BYTES:
                    raise FrameError(f"a record of {size} bytes")
                wanted = _LENGTH.size + size + _TAG_BYTES
                if self._filled == wanted:
                    self._filled = 0
                    return int(size)
            n = self._stream.recv_into(self._record[self._filled : wanted])
            if not n:
                return None
            self._filled += n

    def _decrypt(self, size: int, into: memoryview) -> None:
        head = self._record[: _LENGTH.size]
        sealed = self._record[_LENGTH.size : _LENGTH.size + size + _TAG_BYTES]
        try:
            self._cipher.decrypt_into(_nonce(self._n_records), sealed, head, into)
        except InvalidTag as error:
            self._unread = self._plain[:0]
            raise FrameError("a record that the key does not fit") from error
        self._n_records += 1

    def _hand_out(self, views: list[memoryview]) -> int:
        given = 0
        for view in views:
            n = min(len(view), len(self._unread))
            view[:n] = self._unread[:n]
            self._unread = self._unread[n:]
            given += n
            if not self._unread:
                break
        return given


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "little")
