"""HTTP/2 by hand (RFC 9113), for clients that behave as no library would."""

from __future__ import annotations

import asyncio
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """One frame."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def hello(window: int = 65_535) -> bytes:
    """Preface and settings; `window`: how many bytes of an answer are taken unread."""
    return PREFACE + frame(SETTINGS, payload=struct.pack(">HI", 4, window))


def call(path: str, stream: int) -> bytes:
    """The head of a gRPC call."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(field(name.encode(), v.encode()) for name, v in fields.items())
    return frame(HEADERS, END_HEADERS, stream, block)


def message(raw: bytes, stream: int, n_sent: int | None = None) -> bytes:
    """A message in gRPC's framing and the end of the call's requests; with `n_sent`, only its
    first bytes, and no end."""
    framed = b"\0" + struct.pack(">I", len(raw)) + raw
    if n_sent is not None:
        return frame(DATA, 0, stream, framed[:n_sent])
    return frame(DATA, END_STREAM, stream, framed)


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read until the end, answer what keeps a connection alive, grant no window."""
    try:
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == PING and not flags & ACK:
                writer.write(frame(PING, ACK, payload=payload))
            elif kind == SETTINGS and not flags & ACK:
                writer.write(frame(SETTINGS, ACK))
    except (asyncio.IncompleteReadError, ConnectionError):
        return


def field(name: bytes, value: bytes) -> bytes:
    """One header field as HPACK has it without tables; each part below 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
