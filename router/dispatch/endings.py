"""The ways in which a request ends, and the commands that its workers then get."""

from __future__ import annotations

from twolane import errors
from twolane.router.dispatch.board import Board
from twolane.router.requests.attempt import Attempt, AttemptState
from twolane.router.requests.ledger import make_ledger
from twolane.router.requests.request import Request, RequestState
from twolane.v1 import sampling_pb2, worker_pb2

S = RequestState
LET_GO_S = 2.0  # within which the next router has adopted all rows that it can reach


class Endings:
    """Every request is removed from the board here, exactly once."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def last_token(
        self, request: Request, reason: sampling_pb2.FinishReason, role: int, now: float
    ) -> None:
        """The answer is complete; `role` produced its last token. Wait a moment for the workers'
        final figures, then send the ledger."""
        attempt = request.attempt
        assert attempt is not None
        self._board.advance(request, S.ENDING)
        request.finish_reason = reason
        request.answer.end()
        attempt.life.advance(AttemptState.OVER)
        self._board.tally.remove(attempt)  # the workers are free; only figures are missing
        self._board.note_news(request)
        prefill = self._board.members.get(attempt.prefill_epoch)
        if role == worker_pb2.ROLE_PREFILL:
            request.awaited_roles = frozenset({worker_pb2.ROLE_PREFILL})
            if not attempt.is_colocated:
                # the prefill worker tells it, too, if their connection holds
                self._cancel_at(attempt.decode_epoch, attempt)
        elif prefill is not None and prefill.is_open:
            request.awaited_roles = frozenset({worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE})
        else:
            request.awaited_roles = frozenset({worker_pb2.ROLE_DECODE})
        request.due = now + self._board.config.dispatch.ledger_wait_s
        self._board.alarm(request, request.due)
        self.complete_if_told(request)

    def stopped(
        self, request: Request, reason: sampling_pb2.FinishReason, role: int, now: float
    ) -> None:
        """The router ends the answer, so the workers must be told: a stop string is complete, or
        there are max_tokens tokens and the worker has not ended the answer."""
        assert request.attempt is not None
        self.cancel_attempt(request.attempt)
        self.last_token(request, reason, role, now)

    def complete_if_told(self, request: Request) -> None:
        """ENDING: finish the request if all awaited roles have sent their figures."""
        assert request.attempt is not None
        if request.awaited_roles <= request.attempt.ended_roles:
            self.complete(request)

    def complete(self, request: Request) -> None:
        """ENDING -> FINISHED, with the figures received so far."""
        attempt = request.last_attempt
        workers = (attempt.prefill_epoch, attempt.decode_epoch) if attempt else (0, 0)
        prefill_worker, decode_worker = map(self._board.members.worker_id, workers)
        request.ledger = make_ledger(
            request.timeline,
            prompt_tokens=request.n_prompt,
            output_tokens=len(request.answer.tokens),
            attempts=request.n_attempts,
            takeovers=request.job.fence,
            prefill_worker=prefill_worker,
            decode_worker=decode_worker,
        )
        self._board.advance(request, S.FINISHED)
        self._board.counters["finished"] += 1
        self._board.outlook.note_end(request, is_whole=True)
        self._board.traffic.answered(request)
        self._leave(request)

    def fail(self, request: Request, error: errors.TwolaneError) -> None:
        """Send one typed error to the client, and cancel the attempt at both workers."""
        request.answer.end()
        self._fail(request, error)

    def let_go(self, request: Request, now: float, within_s: float = LET_GO_S) -> None:
        """End a request that another router has taken over or will. Its rows are for that router,
        so workers are not told to cancel at once; after `within_s`, a cancel reaches those that
        that router could not."""
        attempt = request.attempt
        if attempt is not None and not attempt.is_over:
            for epoch in attempt.epochs():
                self._board.cancel_later(epoch, attempt.key, now + within_s)  # guard: taken
            attempt.life.advance(AttemptState.OVER)
        self._board.counters["taken"] += 1
        self._fail(request, errors.TakenOverError("another router has taken this request over"))

    def complete_known(
        self, request: Request, reason: sampling_pb2.FinishReason, now: float
    ) -> None:
        """Complete a request whose whole answer was received from its client or from another
        router's rows, so that no worker has anything to do."""
        self._board.advance(request, S.RUNNING)
        self._board.advance(request, S.ENDING)
        request.finish_reason = reason
        request.answer.end()
        self.complete(request)

    def _fail(self, request: Request, error: errors.TwolaneError) -> None:
        is_cancel = isinstance(error, errors.CancelledError)
        request.error = error
        if isinstance(error, errors.DeadlineError):
            self._board.outlook.note_end(request, is_whole=False)
        if request.attempt is not None and not request.attempt.is_over:
            self.cancel_attempt(request.attempt)
            request.attempt.life.advance(AttemptState.OVER)
        self._board.advance(request, S.CANCELLED if is_cancel else S.FAILED)
        if not is_cancel:
            self._board.traffic.failed()
        self._board.counters["cancelled" if is_cancel else f"failed.{error.reason}"] += 1
        self._leave(request)

    def fail_of_bug(self, request: Request, what: str) -> None:
        """Fail a request after an exception in `what`. Whatever its state, it is removed from every
        table. Text that was held back is dropped, because it may have caused the exception."""
        self._board.counters["bugs"] += 1
        if not request.is_over:
            error = errors.InternalError(
                "a bug in twolane; the router's log has its trace", metadata={"while": what}
            )
            self._fail(request, error)
        elif self._board.requests.get(request.job.submission_id) is request:
            self._leave(request)

    def cancel_attempt(self, attempt: Attempt) -> None:
        """Send cancels to every worker that may know the attempt, for every number under which it
        may be known."""
        for number in attempt.prefill_numbers:
            self._board.cancel(attempt.prefill_epoch, attempt.key.submission_id, number)
        for epoch in attempt.epochs():
            self._cancel_at(epoch, attempt)

    def _cancel_at(self, epoch: int, attempt: Attempt) -> None:
        self._board.cancel(epoch, attempt.key.submission_id, attempt.key.attempt)

    def _leave(self, request: Request) -> None:
        took_s = max(0.0, self._board.now - request.job.arrived)
        if request.ledger is not None:
            took_s = request.ledger.total_s
        outcome = request.state.name.lower()
        self._board.observer.ended(request.job.model, outcome, took_s)
        self._board.set_attempt(request, None)
        self._board.remove(request)
        self._board.note_news(request)
