"""Time passes for requests: deadlines, waits that have lasted too long.

Each request has one moment at which it must be looked at, in `Board.alarms`; a look says when the
next one will be. Whoever sets a time that comes earlier says so with `Board.alarm`. A time that has
moved on meanwhile costs a look too early, which does nothing.
"""

from __future__ import annotations

from twolane.errors import DeadlineError
from twolane.router.dispatch.admission import Admission
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.recovery import Recovery
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
        """A new request has been queued, and placed if that was possible at once."""
        if not request.is_over:
            self._board.alarm(request, self._next_look(request, now))

    def tick(self, now: float) -> None:
        for request in self._board.alarms.take_up_to(now):
            self._guard.run("ticked", request.job.submission_id, now, self._look, request, now)

    def _look(self, request: Request, now: float) -> None:
        if request.is_over:
            return  # another's look has ended it
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
