"""The last lines that this process has logged, in memory, for operators."""

from __future__ import annotations

import logging
from collections import deque
from threading import Lock

MOST_LINES = 2_000
LINE_CHARS = 500


class LogTail(logging.Handler):
    """Lines are numbered from 1. May be read from any thread."""

    def __init__(self, most: int = MOST_LINES) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=most)
        self._guard = Lock()
        self.last_line = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            lines = self.format(record).splitlines()
        except (TypeError, ValueError):  # the message and its arguments do not fit
            self.handleError(record)
            return
        with self._guard:
            for line in lines:
                self._lines.append(line[:LINE_CHARS])
                self.last_line += 1

    def tail(self, n: int, after: int = 0) -> tuple[list[str], int]:
        """The last `n` lines of those after number `after`, and the number of the last one."""
        with self._guard:
            n = min(n, self.last_line - after if after else n, len(self._lines))
            return list(self._lines)[len(self._lines) - n :] if n > 0 else [], self.last_line


LOG_TAIL = LogTail()  # of this process; `log_to_stderr` fills it
