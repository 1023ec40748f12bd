"""Continues requests that another router has begun.

rows found     RUNNING: with the rows' attempt and all its tokens; from then on as if it had
               always been ours
none found     RESUMING: with the tokens that its client has sent; ahead of new requests
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.attempt_number import try_of
from twolane.errors import UnknownSubmissionError
from twolane.router.dispatch import commands
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.recovery import Recovery
from twolane.router.requests.adopted import KnownAttempt
from twolane.router.requests.answer import Answer
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.journal import FIRST_TOKEN, JOINED, TAKEN_OVER
from twolane.router.requests.request import Job, Request, RequestState
from twolane.router.text.detokenizer import Detokenizer
from twolane.rpc.columns import GOES_ON
from twolane.rpc.params import params_to_proto
from twolane.v1 import sampling_pb2, worker_pb2

_LENGTH, _STOP = sampling_pb2.FINISH_REASON_LENGTH, sampling_pb2.FINISH_REASON_STOP
_KIND = worker_pb2.RowEvent


class Adopting:
    """See the module's docstring."""

    def __init__(self, board: Board, endings: Endings, recovery: Recovery) -> None:
        self._board = board
        self._endings = endings
        self._recovery = recovery

    def from_rows(
        self,
        job: Job,
        known: KnownAttempt,
        detokenizer: Detokenizer | None,
        n_tokens: int,
        n_text_bytes: int,
        now: float,
    ) -> Request:
        """Continue the attempt `known`; the client has `n_tokens` and `n_text_bytes` of the answer.
        If the rows have fewer tokens, cancels them and raises `UnknownSubmissionError`."""
        self._check_names(job)
        answer = Answer(detokenizer, job.params.stop, job.params.min_tokens)
        is_stopped, role, reason = False, worker_pb2.ROLE_DECODE, GOES_ON
        for token in known.tokens:
            is_stopped = answer.add(token.token_id, token.finish_reason, token.logprobs)
            role, reason = token.role, token.finish_reason
            if is_stopped or reason:
                break
        lacks_logprobs = job.params.top_logprobs is not None and not known.has_logprobs_from(
            n_tokens
        )
        if n_tokens > len(answer.tokens) or lacks_logprobs:
            for epoch in known.sides:
                self._board.cancel(epoch, job.submission_id, known.number)
            raise UnknownSubmissionError(
                f"only {len(answer.tokens)} tokens of the answer are left; "
                f"its client has {n_tokens}"
            )
        answer.skip(n_tokens, n_text_bytes)
        request = self._begin(job, answer, RequestState.RUNNING, len(known.tokens), now)
        attempt = self._attempt(request, known, now)
        self._note_news(request, attempt, known, now)
        if is_stopped:
            self._endings.stopped(request, _STOP, role, now)
        elif reason:
            self._endings.last_token(request, reason, role, now)
        elif request.remaining_tokens <= 0:
            self._endings.stopped(request, _LENGTH, role, now)
        else:
            self._go_on(request, attempt, known, now)
        self._board.note_news(request)
        return request

    def from_client(
        self,
        job: Job,
        detokenizer: Detokenizer | None,
        token_ids: Sequence[int],
        n_text_bytes: int,
        eos_token_ids: frozenset[int],
        now: float,
    ) -> Request:
        """Continue after `token_ids`, which the client has: they are prefilled again with the
        prompt."""
        self._check_names(job)
        params = job.params
        ends = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else eos_token_ids
        )
        answer = Answer(detokenizer, params.stop, params.min_tokens)
        reason = GOES_ON
        for token_id in token_ids:
            n_answer = len(answer.tokens) + 1
            if token_id in ends and n_answer > params.min_tokens:
                reason = _STOP
            elif n_answer >= job.max_tokens:
                reason = _LENGTH
            if answer.add(token_id, reason):
                reason = _STOP
            if reason:
                break
        answer.skip(len(answer.tokens), n_text_bytes)
        request = self._begin(job, answer, RequestState.RESUMING, len(token_ids), now)
        if reason:
            self._endings.complete_known(request, reason, now)
        self._board.note_news(request)
        return request

    def _check_names(self, job: Job) -> None:
        # Of another tenant, or with another resume token.
        if job.submission_id in self._board.requests:
            raise UnknownSubmissionError("you have no such answer")
        if job.label in self._board.labels:
            raise job.label.in_use_error()

    def _begin(
        self, job: Job, answer: Answer, state: RequestState, n_tokens: int, now: float
    ) -> Request:
        """Create the request, whose answer had `n_tokens` at its former router."""
        request = Request(job, answer, params_to_proto(job.params), state)
        # The tokens that its first router has charged.
        request.cost_tokens = job.n_prompt + n_tokens
        self._board.accounts.of(job.tenant, now).adopt()
        self._board.add(request)
        self._board.counters["adopted"] += 1
        self._board.note(request, TAKEN_OVER, now)
        return request

    def _attempt(self, request: Request, known: KnownAttempt, now: float) -> Attempt:
        """Create the request's attempt from the rows' one, before any of their events arrive."""
        assign, members = known.assign, self._board.members
        decode = members.get(known.decode_epoch)
        attempt = Attempt(
            worker_pb2.AttemptKey(submission_id=request.job.submission_id, attempt=known.number),
            row=self._board.next_row(),
            prefill_epoch=assign.prefill.epoch,
            decode_epoch=known.decode_epoch,
            n_tokens=len(assign.token_ids),
            first_index=known.first_index,
            growth_tokens=assign.growth_tokens,
            page_tokens=decode.announce.page_tokens if decode is not None else 1,
            now=now,
        )
        self._board.set_attempt(request, attempt)
        while request.n_tokens > attempt.promised_tokens:
            self._board.tally.grow(attempt)
        request.n_attempts = max(request.n_attempts, try_of(known.number))
        request.timeline.dispatched = now
        return attempt

    def _note_news(
        self, request: Request, attempt: Attempt, known: KnownAttempt, now: float
    ) -> None:
        for event in known.events():
            if event.HasField("figures"):
                self._board.note_figures(request, known.number, event.role, event.figures)
            if event.kind in (_KIND.KIND_HANDED_OVER, _KIND.KIND_FINISHED):
                attempt.ended_roles.add(event.role)
        if known.tokens:
            self._board.note(request, FIRST_TOKEN, now, attempt=attempt)
        if known.is_decoding:
            self._board.note(request, JOINED, now, attempt=attempt)
            attempt.set_decoding()
            self._board.tally.handed_over(attempt)

    def _go_on(self, request: Request, attempt: Attempt, known: KnownAttempt, now: float) -> None:
        """Ask the workers to send the rows' events again, which are then handled as usual. Earlier
        attempts that still run are cancelled."""
        for epoch, number in known.others:
            self._board.cancel(epoch, request.job.submission_id, number)
        if known.is_cancelled:
            self._recovery.retry(request, "router_lost", now, is_failure=False)
            return
        for epoch in attempt.epochs():
            self._recovery.attach(request, epoch)
        for epoch in attempt.epochs():
            member = self._board.members.get(epoch)
            is_lost = member is None or self._board.members.is_lost(member, now)
            # The loss of its prefill worker leaves it JUDGING: an adopted attempt is never MOVING.
            if is_lost and self._recovery.move(request, attempt, epoch, now):
                self._board.send(attempt.decode_epoch, commands.judge_peer(epoch))
