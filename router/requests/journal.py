"""The history of a request, kept while it runs and for some time after its end.

It has only names and reasons of twolane, nothing of a prompt or an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

MOST_FIRST = 32
MOST_LAST = 32

PLACED = "placed"
MOVED = "moved"  # to another decode worker, with its pages
FIRST_TOKEN = "first token"
JOINED = "joined"
RETRY = "retry"
TAKEN_OVER = "taken over"
ENDED = "ended"


class Mark(NamedTuple):
    """One event of the history, with its time on the router's clock in seconds."""

    at: float
    what: str
    attempt: int = 0  # 0: no attempt
    where: str = ""  # the worker; for PLACED and MOVED the prefill worker
    to: str = ""  # for PLACED and MOVED, the decode worker
    note: str = ""  # the reason, in one word


class Journal:
    """The first and the last marks of one request. Marks dropped in between are counted."""

    __slots__ = ("_first", "_last", "n_lost")

    def __init__(self) -> None:
        self._first: list[Mark] = []
        self._last: deque[Mark] | None = None
        self.n_lost = 0

    def note(self, mark: Mark) -> None:
        if len(self._first) < MOST_FIRST:
            self._first.append(mark)
            return
        if self._last is None:
            self._last = deque(maxlen=MOST_LAST)
        self.n_lost += len(self._last) == MOST_LAST
        self._last.append(mark)

    def __iter__(self) -> Iterator[Mark]:
        yield from self._first
        yield from self._last or ()
