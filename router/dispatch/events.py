"""Handles the tokens and events that workers send about attempts.

Tokens, by index against the n tokens that the answer has:

    index < n    a repeat. D's first event repeats P's token; all others are duplicates. If its
                 token differs from the one streamed, one of them is wrong: new attempt.
    index = n    the next token.
    index > n    a token is missing (the session broke): request it again, once; then new attempt.

The same where a row has FINISHED before its last token: while the router that has it adopts it
again, its tokens are told under a row number that is over.
"""

from __future__ import annotations

from twolane.errors import InternalError
from twolane.refusals import Refusal
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.recovery import Recovery
from twolane.router.requests.attempt import Attempt, AttemptState
from twolane.router.requests.journal import FIRST_TOKEN, JOINED
from twolane.router.requests.request import Request, RequestState
from twolane.rpc.columns import Told
from twolane.v1 import sampling_pb2, worker_pb2

K = worker_pb2.RowEvent
A = AttemptState
_QUIET_WHEN_UNKNOWN = (K.KIND_FINISHED, K.KIND_GONE, K.KIND_HANDED_OVER)


class Events:
    """See the module's docstring."""

    def __init__(self, board: Board, endings: Endings, recovery: Recovery) -> None:
        self._board = board
        self._endings = endings
        self._recovery = recovery

    def token(self, request: Request, epoch: int, role: int, told: Told, now: float) -> None:
        """Handle one token of a worker's columns; `request` is the request with its row number."""
        row, index, token_id, finish_reason, logprobs = told
        attempt = request.attempt
        assert attempt is not None
        if attempt.is_over or not attempt.may_tell(row, epoch, role):  # guard: row teller
            self._board.drop("old_attempt")
            return
        attempt.last_news = now
        if role == worker_pb2.ROLE_DECODE:
            self._decodes(request, attempt, now)
        if index != len(request.answer.tokens):  # guard: token index
            self._out_of_order(request, attempt, epoch, role, index, token_id, now)
            return
        attempt.gap_due = None
        found = request.answer.add(token_id, finish_reason, logprobs)
        is_first = index == attempt.first_index
        if is_first:
            self._board.tally.through(attempt)
            self._board.note(request, FIRST_TOKEN, now, attempt=attempt)
        if request.n_tokens > attempt.promised_tokens:
            self._board.tally.grow(attempt)
        self._board.note_news(request)
        gap_s = request.timeline.note_token(now)
        if is_first:
            request.timeline.moved()
        if gap_s is None:
            self._board.observer.first_token(request.job.model, now - request.job.arrived)
        else:
            self._board.observer.gap(request.job.model, gap_s)
        if found:
            self._endings.stopped(request, sampling_pb2.FINISH_REASON_STOP, role, now)
        elif finish_reason:
            self._endings.last_token(request, finish_reason, role, now)
        elif request.remaining_tokens <= 0:
            self._endings.stopped(request, sampling_pb2.FINISH_REASON_LENGTH, role, now)

    def _decodes(self, request: Request, attempt: Attempt, now: float) -> None:
        if attempt.set_decoding():
            self._board.note(request, JOINED, now, attempt=attempt)
            self._board.tally.handed_over(attempt)

    def _out_of_order(
        self,
        request: Request,
        attempt: Attempt,
        epoch: int,
        role: int,
        index: int,
        token_id: int,
        now: float,
    ) -> None:
        tokens = request.answer.tokens
        if index > len(tokens):
            self._board.drop("gap")
            if attempt.gap_due is None:
                self._ask_for_missing(request, attempt, epoch, now)
        elif tokens[index] != token_id:
            self._board.drop("disagreement")
            self._recovery.retry(request, "disagreement", now)
        elif role != worker_pb2.ROLE_DECODE or index != attempt.first_index:
            self._board.drop("duplicate")

    def _ask_for_missing(self, request: Request, attempt: Attempt, epoch: int, now: float) -> None:
        attempt.gap_due = now + self._board.config.dispatch.attach_wait_s
        self._board.alarm(request, attempt.gap_due)
        self._recovery.attach(request, epoch)

    def row(self, epoch: int, event: worker_pb2.RowEvent, now: float) -> None:
        request = self._board.requests.get(event.key.submission_id)
        if request is None:
            if event.kind not in _QUIET_WHEN_UNKNOWN:
                self._board.drop("unknown_request")
            return
        if event.kind == K.KIND_TAKEN:  # for any attempt: another router has taken the request over
            self._endings.let_go(request, now)
            return
        attempt = request.attempt
        if attempt is None or (role := attempt.role_of(event.key, epoch, event.role)) is None:
            self._board.drop("old_attempt")
            return
        attempt.last_news = now
        if event.HasField("figures"):
            self._board.note_figures(request, attempt.key.attempt, role, event.figures)
        if event.kind in (K.KIND_HANDED_OVER, K.KIND_FINISHED):
            attempt.ended_roles.add(role)
            if event.kind == K.KIND_FINISHED and attempt.is_colocated:
                attempt.ended_roles |= {worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE}
        if request.state is RequestState.ENDING:
            self._endings.complete_if_told(request)
        elif not attempt.is_over:
            self._react(request, attempt, epoch, event, role, now)

    def _react(
        self,
        request: Request,
        attempt: Attempt,
        epoch: int,
        event: worker_pb2.RowEvent,
        role: int,
        now: float,
    ) -> None:
        """Handle an event of the live attempt of a RUNNING request."""
        is_current = event.key.attempt == attempt.key.attempt
        is_prefill = role == worker_pb2.ROLE_PREFILL
        if is_prefill and attempt.state is A.DECODING and not attempt.is_colocated:
            return  # D has the row: P's events are outdated
        match event.kind:
            case K.KIND_HANDED_OVER | K.KIND_JOINED | K.KIND_LANDED:
                if is_current:  # else P handed the row to the decode worker that is lost
                    self._decodes(request, attempt, now)
            case K.KIND_UNPLACED:
                if is_current:
                    self._recovery.unplaced(request, now)
            case K.KIND_RETARGETED:
                if attempt.state is A.MOVING:
                    attempt.life.advance(A.PLACED)
                    attempt.due = None
            case K.KIND_PREEMPTED:
                self._recovery.preempted(request, now)
            case K.KIND_DEAD:
                if is_prefill:
                    self._recovery.undelivered(request)
                # a held row: its pages went to other rows, so there was progress
                self._recovery.retry(
                    request, event.reason or "dead", now, is_failure=event.reason != "held"
                )
            case K.KIND_FAILED:
                self._endings.fail(
                    request,
                    InternalError(
                        event.message or f"the row failed: {event.reason}",
                        metadata={
                            "reason": event.reason,
                            "worker": self._board.members.worker_id(epoch),
                        },
                    ),
                )
            case K.KIND_REFUSED if event.reason == Refusal.CANCELLED and not is_prefill:
                pass  # P abandoned the transfer before D was assigned; P reports why
            case K.KIND_REFUSED:
                self._recovery.refused(request, epoch, event.reason, event.message, now)
            case K.KIND_GONE | K.KIND_FINISHED:
                if not ends_attempt(attempt, role, event):
                    pass
                elif event.kind == K.KIND_FINISHED and attempt.gap_due is None:
                    self._ask_for_missing(request, attempt, epoch, now)
                else:
                    self._recovery.retry(request, "row_gone", now)
            case _:
                self._board.drop("unknown_event")


def ends_attempt(attempt: Attempt, role: int, event: worker_pb2.RowEvent) -> bool:
    """Whether the end of a row before its last token ends the attempt.

    Events of the role that owns the row count; in JUDGING, D's. D's GONE always counts: it will
    never join. D's FINISHED before it has the row may be the end that P's token reports, too.
    """
    if attempt.is_colocated and event.kind == K.KIND_GONE:
        return True  # colocated: one worker and one row, whatever the role
    if role == worker_pb2.ROLE_DECODE:
        return attempt.state is A.DECODING or event.kind == K.KIND_GONE
    return attempt.state in (A.PLACED, A.MOVING)
