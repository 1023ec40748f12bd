"""Frames between a group and one rank, over a private socket pair.

    kind (1 byte) | length (4 bytes) | body

The stream ends when the process at the other end dies, for whatever reason.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from enum import IntEnum
from typing import Any

_HEAD = struct.Struct("<BI")
_BUFFER_BYTES = 4 << 20  # a step's message fits, so that sending it does not wait for the reader


class Kind(IntEnum):
    START = 1  # to a rank: what to load (JSON)
    PROGRESS = 2  # from rank 0: a tuple of twolane.engine.progress, after its name (JSON)
    READY = 3  # from a rank: spec and exported pool (JSON)
    STEP = 4  # to a rank: see `twolane.engine.ranks.messages`
    RESULT = 5  # from a rank
    FAILED = 6  # from a rank, the last frame: class and text of its error (JSON)
    CLOSE = 7  # to a rank: finish and exit


class Channel:
    """One end. `send` may be called on any thread, `receive` on one. `send_within_s`: `send` raises
    BlockingIOError if the other side reads nothing for so long."""

    def __init__(self, sock: socket.socket, *, send_within_s: float = 0.0) -> None:
        whole_s = int(send_within_s)
        timeout = struct.pack("@ll", whole_s, int((send_within_s - whole_s) * 1e6))  # 0: none
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._sock = sock
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Raises OSError if the other side is gone."""
        with self._sending:
            self._sock.sendall(_HEAD.pack(kind, len(body)) + body)

    def send_at_once(self, kind: Kind, within_s: float) -> bool:
        """Send a frame without a body, or return False: the other side does not read, or another
        thread still sends after `within_s`. Raises OSError if the other side is gone."""
        if not self._sending.acquire(timeout=within_s):
            return False
        try:
            return self._sock.send(_HEAD.pack(kind, 0), socket.MSG_DONTWAIT) == _HEAD.size
        except BlockingIOError:
            return False
        finally:
            self._sending.release()

    def send_json(self, kind: Kind, value: Any) -> None:
        self.send(kind, json.dumps(value).encode())

    def receive(self) -> tuple[Kind, bytes] | None:
        """The next frame; None at the end of the stream, even within a frame."""
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
