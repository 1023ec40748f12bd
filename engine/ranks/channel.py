"""Frames between a group and one rank, over a socket pair that nobody else holds.

    kind (1 byte) | length (4 bytes) | body

The end of the stream is the end of the process at the other side, however it came about.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from enum import IntEnum
from typing import Any

_HEAD = struct.Struct("<BI")
_BUFFER_BYTES = 4 << 20  # a step's message fits: who sends it does not wait for who reads it


class Kind(IntEnum):
    START = 1  # to a rank: what to load (JSON)
    PROGRESS = 2  # from rank 0: what twolane.engine.progress has, its name first (JSON)
    READY = 3  # from a rank: its facts (JSON)
    STEP = 4  # to a rank: see `twolane.engine.ranks.messages`
    RESULT = 5  # from a rank
    FAILED = 6  # from a rank, its last word: class and text of its error (JSON)
    CLOSE = 7  # to a rank: finish, and end


class Channel:
    """One end. `send` on any thread, `receive` on one."""

    def __init__(self, sock: socket.socket) -> None:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._sock = sock
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Raises OSError where the other side is gone."""
        with self._sending:
            self._sock.sendall(_HEAD.pack(kind, len(body)) + body)

    def send_json(self, kind: Kind, value: Any) -> None:
        self.send(kind, json.dumps(value).encode())

    def receive(self) -> tuple[Kind, bytes] | None:
        """The next frame; None at the end of the stream, also amid a frame."""
        head = self._take(_HEAD.size)
        if head is None:
            return None
        kind, size = _HEAD.unpack(head)
        body = self._take(size)
        return None if body is None else (Kind(kind), body)

    def close(self) -> None:
        self._sock.close()

    def _take(self, size: int) -> bytes | None:
        taken = bytearray(size)
        view, at = memoryview(taken), 0
        while at < size:
            try:
                n = self._sock.recv_into(view[at:])
            except ConnectionError:
                return None
            if not n:
                return None
            at += n
        return bytes(taken)
