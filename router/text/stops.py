"""Finds stop strings across token boundaries, as a pure function of the text so far.

    fed so far:   …emitted…|held|            held = the longest end of the text that may be the
    next piece:                  |piece|            beginning of a stop string

The result does not depend on how the text is split into pieces: it is the same as for single
characters. The stop string that ends first is found (of two that end together, the longer one);
neither it nor any text after it is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopWatch:
    """Watches one answer's text."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would stop at once"
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """Feed text. Returns the text that is safe to emit now, and whether a stop string was
        found.

        After a hit nothing more may be fed.
        """
        if not self._stops:
            return piece, False
        text = self._held + piece
        hits = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            self._held = ""
            return text[: min(hits)[1]], True
        n_held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held], False

    def flush(self) -> str:
        """Return the held text, at the end of an answer without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
