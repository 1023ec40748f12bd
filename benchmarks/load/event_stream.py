"""Server-sent events, as far as streams of completions use them."""

from __future__ import annotations


class EventReader:
    """Splits a stream of bytes into the data of its events. One line of data per event, as every
    OpenAI-style server sends; comments and other fields are skipped."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events whose line is now complete."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
