"""One request's bug must not end the others'. A table that is wrong must end the router: nobody can
say whose pages and rows it would give away next."""

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
    """Stands around what is done with one request: where it is placed, ticked, told, moved
    to other workers and ended."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings
        self._log_rate = LogRate()
        self._broken: AssertionError | None = None

    def check(self) -> None:
        """Raises the AssertionError that was met, wherever that was. Called by the clock, whose end
        is the router's."""
        if self._broken is not None:
            raise self._broken

    def run(
        self, what: str, submission_id: str, now: float, work: Callable[..., ResultT], *args: Any
    ) -> ResultT | None:
        """Do `work`. A bug that it meets ends that request with InternalError; then None. An
        AssertionError, a broken law of our own tables, is raised: here, and by `check`."""
        try:
            return work(*args)
        except AssertionError as broken:
            self._broken = self._broken or broken
            raise
        except Exception as bug:  # whatever it is, the others go on
            n = self._log_rate.take((what, type(bug)), now)
            if n:
                text = "a bug of ours, met while %d requests were %s: they fail, nothing else does"
                log.exception(text, n, what)
            request = self._board.requests.get(submission_id)
            if request is not None:
                self._endings.fail_of_bug(request, what)
            return None
