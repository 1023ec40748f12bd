"""Exceptions that single requests met: with their traces in the log, but no flood of them."""

from __future__ import annotations

import logging

MOST_TRACES = 5  # within
PERIOD_S = 10.0

_log = logging.getLogger(__name__)


class BugLog:
    """Call `tell` from within `except`."""

    def __init__(self) -> None:
        self._since = 0.0
        self._n_told = 0
        self._n_left_out = 0

    def tell(self, what: str, now: float) -> None:
        """Log the exception under way, unless many were just now."""
        if now - self._since > PERIOD_S:
            if self._n_left_out:
                _log.error("%d more of these were left out", self._n_left_out)
            self._since, self._n_told, self._n_left_out = now, 0, 0
        if self._n_told >= MOST_TRACES:
            self._n_left_out += 1
            return
        self._n_told += 1
        _log.exception("a bug of ours, met while %s: that request fails, nothing else does", what)
