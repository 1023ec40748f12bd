"""The messages between the two ends of the nixl transport (`nixl.proto`), over a stream socket.

Each message behind its length. What is longer than any of ours, or no message, ends the connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from twolane.kvtransfer.device import Region
from twolane.kvtransfer.transports.common.frames import FrameError
from twolane.v1 import nixl_pb2

InT = TypeVar("InT", bound="Message")
Message = nixl_pb2.NixlRequest | nixl_pb2.NixlResponse

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 20  # of a message, and of all that wait to be sent
_READ_BYTES = 1 << 16


class NixlChannel(Generic[InT]):
    """One end. Never blocks; `kind` is the class of incoming messages. Raises OSError when the
    other end is gone."""

    def __init__(self, stream: socket.socket, kind: type[InT]) -> None:
        stream.setblocking(False)
        self.stream = stream
        self._kind = kind
        self._in = bytearray()
        self._out = bytearray()

    def say(self, message: Message) -> None:
        """Send in order. What the socket does not take now is sent by the next call here."""
        raw = message.SerializeToString()
        self._out += _LENGTH.pack(len(raw)) + raw
        if len(self._out) > _MOST_BYTES:
            raise ConnectionAbortedError("the other end does not listen")
        self.flush()

    def flush(self) -> None:
        while self._out:
            try:
                n = self.stream.send(self._out)
            except BlockingIOError:
                return
            del self._out[:n]

    def heard(self) -> list[InT]:
        """The messages that have come since. Raises FrameError for malformed ones."""
        self.flush()
        is_over = self._read()
        messages: list[InT] = []
        while len(self._in) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in)
            if length > _MOST_BYTES:
                raise FrameError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._in) < end:
                break
            messages.append(self._parse(bytes(self._in[_LENGTH.size : end])))
            del self._in[:end]
        if is_over and not messages:
            raise ConnectionResetError("the other end hung up")
        return messages

    def close(self) -> None:
        self.stream.close()

    def _read(self) -> bool:
        """Whether the other end hung up."""
        while True:
            try:
                raw = self.stream.recv(_READ_BYTES)
            except BlockingIOError:
                return False
            if not raw:
                return True
            self._in += raw

    def _parse(self, raw: bytes) -> InT:
        try:
            message = self._kind()
            message.ParseFromString(raw)
        except DecodeError as error:
            raise FrameError(str(error)) from error
        return message


def regions_to_proto(regions: Sequence[Region]) -> list[nixl_pb2.NixlRegion]:
    return [
        nixl_pb2.NixlRegion(address=r.address, n_bytes=r.n_bytes, device=r.device) for r in regions
    ]


def regions_of(message: nixl_pb2.NixlWelcome) -> list[Region]:
    return [
        Region(r.address, r.n_bytes, r.device if r.HasField("device") else None)
        for r in message.regions
    ]
