"""Checks requests' time limits: deadlines and waits.

Each request has one time in `Board.alarms` at which it must be checked; each check sets the next
one. Code that sets an earlier limit calls `Board.alarm`. If a limit was moved to a later time, the
early check does nothing.
"""

from __future__ import annotations

from twolane.errors import DeadlineError
from twolane.router.dispatch.admission import Admission
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.recovery import Recovery
from twolane.router.requests.attempt import later
from twolane.router.requests.request import Request, RequestState

S = RequestState


class RequestClock:
    """See the module's docstring."""

    def __init__(
        self,
        board: Board,
        endings: Endings,
        recovery: Recovery,
        admission: Admission,
        guard: FaultBoundary,
    ) -> None:
        self._board = board
        self._endings = endings
        self._recovery = recovery
        self._admission = admission
        self._guard = guard

    def begin(self, request: Request, now: float) -> None:
        """Schedule the first check of a new request, which is queued or already placed."""
        if not request.is_over:
            self._board.alarm(request, self._next_look(request, now))

    def excuse(self, late_s: float, now: float) -> None:
        """Give workers so much longer for what they owe, if this router comes back after so many
        seconds that it may take its own pause for theirs: their answers are still to be read."""
        config = self._board.config.dispatch
        waits_s = (config.judge_wait_s, config.retarget_wait_s, config.attach_wait_s)
        if late_s <= min(waits_s) / 2:
            return
        self._admission.excuse()
        most_s = max(waits_s)  # what was set since the pause has its whole wait before it
        for request in self._board.requests.values():
            if request.state is S.ENDING and request.due is not None:
                request.due = later(request.due, late_s, now + most_s)
            elif request.state is S.RUNNING and request.attempt is not None:
                request.attempt.postpone(late_s, now, most_s)

    def tick(self, now: float) -> None:
        for request in self._board.alarms.take_up_to(now):
            self._guard.run("ticked", request.job.submission_id, now, self._look, request, now)

    def _look(self, request: Request, now: float) -> None:
        if request.is_over:
            return  # another request's check has ended it
        deadline = request.job.deadline
        if request.state is S.ENDING:
            if request.due is not None and now >= request.due:
                self._endings.complete(request)
        elif deadline is not None and now >= deadline:
            n_tokens = len(request.answer.tokens)
            self._endings.fail(
                request,
                DeadlineError(
                    f"the deadline passed after {now - request.job.arrived:.3f} s and "
                    f"{n_tokens} tokens",
                    metadata={"output_tokens": str(n_tokens)},
                ),
            )
        elif request.state is S.RUNNING:
            self._recovery.tick(request, now)
        else:
            self._admission.tick(request, now)
        if not request.is_over:
            self._board.alarm(request, self._next_look(request, now))

    def _next_look(self, request: Request, now: float) -> float:
        if request.state is S.ENDING:
            assert request.due is not None
            return request.due
        if request.state is S.RUNNING:
            due = self._recovery.next_look(request)
        else:
            due = self._admission.next_look(request, now)
        return due if request.job.deadline is None else min(due, request.job.deadline)
