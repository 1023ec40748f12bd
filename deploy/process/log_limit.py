"""At most so many log records of a kind each second: a flood of them neither burns a core nor fills
a disk."""

from __future__ import annotations

import atexit
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

_NUMBERS = re.compile(r"\d+")


def limit_records(handler: logging.Handler) -> None:
    """Bound what `handler` writes."""
    limit = LogLimit(handler)
    handler.addFilter(limit)
    atexit.register(limit.tell)


@dataclass(slots=True)
class _Kind:
    """Records that differ in numbers and arguments only."""

    second: int
    n_passed: int = 0
    n_held: int = 0
    last: logging.LogRecord | None = None  # of those held back


class LogLimit(logging.Filter):
    """For a handler: each kind of record passes `per_s` times a second. What was held back is told
    in one line, with the first record of any kind that comes a second later."""

    def __init__(
        self,
        handler: logging.Handler,
        *,
        per_s: int = 10,
        kinds: int = 1000,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._per_s = per_s
        self._most_kinds = kinds
        self._now = now
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()  # by last use
        self._held: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by the handler, whose lock is not held then; other threads may come too."""
        second = int(self._now())
        self._tell(second)
        key = record.name, record.levelno, _NUMBERS.sub("#", str(record.msg)[:200])
        kind = self._kinds.setdefault(key, _Kind(second))
        self._kinds.move_to_end(key)
        if len(self._kinds) > self._most_kinds:
            self._kinds.popitem(last=False)
        if kind.second != second:
            kind.second, kind.n_passed = second, 0
        if kind.n_passed < self._per_s:
            kind.n_passed += 1
            return True
        kind.n_held += 1
        kind.last = record
        self._held[key] = kind
        return False

    def tell(self) -> None:
        """Tell now what was held back, as at the end of the process."""
        self._tell(-1)

    def _tell(self, second: int) -> None:
        for key, kind in list(self._held.items()):
            if kind.second == second:
                continue
            if self._held.pop(key, None) is None:
                continue  # another thread tells it
            assert kind.last is not None
            told = logging.LogRecord(
                kind.last.name,
                kind.last.levelno,
                kind.last.pathname,
                kind.last.lineno,
                "%d more like it were not logged: %s",
                (kind.n_held, kind.last.getMessage()[:200]),
                None,
            )
            kind.n_held, kind.last = 0, None
            with self._handler.lock or nullcontext():
                self._handler.emit(told)
