"""Limits the effect of bugs: an exception in one request ends only that request. An inconsistent
table ends the router, because it might give away other requests' pages and rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class FaultBoundary:
    """Wraps the code that handles one request: placing, ticking, events, moving and ending."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings
        self._log_rate = LogRate()
        self._broken: AssertionError | None = None

    def check(self) -> None:
        """Raise the AssertionError that `run` has caught, if any. The clock's task calls this,
        whose end ends the router."""
        if self._broken is not None:
            raise self._broken

    def run(
        self, what: str, submission_id: str, now: float, work: Callable[..., ResultT], *args: Any
    ) -> ResultT | None:
        """Call `work`. An exception ends that request with InternalError, and None is returned. An
        AssertionError, which means an inconsistent table, is raised here and again by `check`."""
        try:
            return work(*args)
        except AssertionError as broken:
            self._broken = self._broken or broken
            raise
        except Exception as bug:  # any error ends only this request
            n = self._log_rate.take((what, type(bug)), now)
            if n:
                text = "a bug in twolane, met while %d requests were %s: only these requests fail"
                log.exception(text, n, what)
            request = self._board.requests.get(submission_id)
            if request is not None:
                self._endings.fail_of_bug(request, what)
            return None
