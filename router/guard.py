"""One request's bug must not end the others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from router.board import Board
from router.bugs import BugLog
from router.endings import Endings

ResultT = TypeVar("ResultT")


class Guard:
    """Stands around what is done with one request: where it is placed, ticked and told."""

    def __init__(self, board: Board, endings: Endings) -> None:
        self._board = board
        self._endings = endings
        self._bugs = BugLog()

    def run(
        self, what: str, submission_id: str, now: float, work: Callable[..., ResultT], *args: Any
    ) -> ResultT | None:
        """Do `work`. A bug that it meets ends that request with InternalError; then None."""
        try:
            return work(*args)
        except Exception:  # noqa: BLE001 - whatever it is, the others go on
            self._bugs.tell(f"a request was {what}", now)
            request = self._board.requests.get(submission_id)
            if request is not None:
                self._endings.fail_of_bug(request, what)
            return None
