"""The text of one answer: converts tokens to final text, and searches it for stop strings.

    token ──> detokenizer ──> piece ──> stop watch ──> unsent ──> take
              holds partial characters  holds what may begin a stop string

All text goes through both, in this order, so later text never overtakes held text.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.router.text.detokenizer import Detokenizer
from twolane.router.text.stops import StopWatch


class AnswerText:
    """Owned by one answer. The text of its first `min_tokens` is not searched for stop strings."""

    __slots__ = (
        "_detokenizer",
        "_has_stops",
        "_is_over",
        "_min_tokens",
        "_n_tokens",
        "_stops",
        "_unsent",
    )

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = StopWatch(stops)
        self._has_stops = bool(stops)
        self._min_tokens = min_tokens
        self._n_tokens = 0
        self._is_over = False
        self._unsent: list[str] = []

    def add(self, token_id: int, *, is_last: bool, is_stop: bool) -> bool:
        """Add a token. Returns whether a stop string is complete, so that the answer ends with it.

        `is_last`: the worker ends the answer with it. `is_stop`: it is a stop token, whose text is
        not part of the answer.
        """
        self._n_tokens += 1
        piece = "" if is_stop else self._detokenizer.add(token_id)
        if is_last:
            piece += self._detokenizer.flush()
        return self._feed(piece)

    def end(self) -> None:
        """No more tokens follow: held text becomes part of the answer. May be called twice."""
        if not self._is_over and not self._feed(self._detokenizer.flush()):
            self._unsent.append(self._stops.flush())

    def take(self) -> str:
        """Take the final text that has not been taken yet."""
        unsent = self._unsent
        text = unsent[0] if len(unsent) == 1 else "".join(unsent)
        unsent.clear()
        return text

    def _feed(self, piece: str) -> bool:
        if not piece:
            return False
        if self._n_tokens < self._min_tokens or not self._has_stops:
            self._unsent.append(piece)
            return False
        emitted, self._is_over = self._stops.feed(piece)
        self._unsent.append(emitted)
        return self._is_over
