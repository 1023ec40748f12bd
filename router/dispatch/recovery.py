"""Recovers attempts whose workers fail.

    what is lost              the row is P's (PLACED)              the row is D's (DECODING)
    P                         ask D what has landed (JUDGING)      nothing: P is not needed
    D                         another D for P's pages (MOVING)     new attempt
    both, or colocated        new attempt                          new attempt

A new attempt prefills the prompt and the tokens that the client has, and waits ahead of new
requests.
"""

from __future__ import annotations

from twolane.attempt_number import fence_of, next_attempt
from twolane.errors import UnavailableError
from twolane.refusals import NOT_NOW, Refusal
from twolane.router.dispatch import commands
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.policy import place, place_decode
from twolane.router.members.member import Member
from twolane.router.members.worker_view import Need, WorkerView
from twolane.router.requests.attempt import Attempt, AttemptState
from twolane.router.requests.journal import RETRY
from twolane.router.requests.request import Request, RequestState
from twolane.v1 import worker_pb2

A = AttemptState


class Recovery:
    """See the module's docstring."""

    def __init__(self, board: Board, endings: Endings, guard: FaultBoundary) -> None:
        self._board = board
        self._endings = endings
        self._guard = guard

    def retry(
        self,
        request: Request,
        reason: str,
        now: float,
        *,
        is_failure: bool = True,
        is_refusal: bool = False,
        detail: str = "",
    ) -> None:
        """End the attempt, and queue the request for another, or fail it after too many failures.
        An attempt that a worker refused (`is_refusal`) does not restart the request's wait for
        workers."""
        attempt = request.attempt
        assert attempt is not None
        config = self._board.config.dispatch
        self._board.note(request, RETRY, now, attempt=attempt, note=reason)
        request.failures += is_failure
        request.refusals = request.refusals + 1 if is_refusal else 0
        if request.failures > config.max_failures:
            message = (
                f"gave up after {request.failures} failed attempts (at most "
                f"{config.max_failures}); the last one: {reason}"
            )
            self._endings.fail(
                request,
                UnavailableError(
                    f"{message}: {detail}" if detail else message,
                    metadata={"failures": str(request.failures), "reason": reason},
                ),
            )
            return
        self._endings.cancel_attempt(attempt)
        attempt.life.advance(A.OVER)
        self._board.advance(request, RequestState.RESUMING)
        self._board.counters[f"resumes.{reason}"] += 1
        self._board.set_attempt(request, None)
        request.queued_since = request.queued_since + now - attempt.placed if is_refusal else now
        n_in_vain = request.failures if is_failure else request.refusals
        if n_in_vain > 1:
            delay_s = config.retry_delay_s * 2 ** min(n_in_vain - 2, 30)
            request.due = now + min(delay_s, config.retry_delay_max_s)
            self._board.alarm(request, request.due)
        else:
            self._board.queue.push(request)
            self._board.alarm(request, now + config.retry_delay_s)

    def preempted(self, request: Request, now: float) -> None:
        """D has preempted the row. This is not a failure if the row made progress since the last
        time."""
        attempt = request.attempt
        assert attempt is not None
        request.n_preempted += 1
        got_ahead = len(request.answer.tokens) > attempt.first_index
        self.retry(request, "preempted", now, is_failure=not got_ahead)

    def worker_lost(self, member: Member, now: float) -> None:
        """Move the requests of a lost worker elsewhere. It is called until the worker is back or
        gone; a second call has nothing left to do."""
        epoch = member.epoch
        to_judge: set[int] = set()
        for request, attempt in self._board.attempts_at(epoch):
            name = request.job.submission_id
            if self._guard.run("moved", name, now, self.move, request, attempt, epoch, now):
                to_judge.add(attempt.decode_epoch)
        for decode_epoch in sorted(to_judge):
            self._board.send(decode_epoch, commands.judge_peer(epoch))

    def move(self, request: Request, attempt: Attempt, lost: int, now: float) -> bool:
        """Move a request away from a lost worker. Returns whether its decode worker must be asked
        what has landed."""
        if attempt.decode_epoch == lost:
            if attempt.state is not A.PLACED or not self.retarget(request, now):
                self.retry(request, "decode_worker_lost", now)
        elif attempt.state is A.MOVING:
            self.retry(request, "prefill_worker_lost", now)
        elif attempt.state is A.PLACED:
            attempt.life.advance(A.JUDGING)
            attempt.due = now + self._board.config.dispatch.judge_wait_s
            self._board.alarm(request, attempt.due)
            return True
        return False

    def retarget(self, request: Request, now: float) -> bool:
        """Have P send its pages to another decode worker, or decode there itself if it can, without
        recomputing them. False if no worker has room, or P cannot be reached."""
        attempt = request.attempt
        assert attempt is not None
        prefill = self._board.members.get(attempt.prefill_epoch)
        if prefill is None or not prefill.is_open or attempt.is_colocated:
            return False
        need = Need(
            n_tokens=attempt.n_tokens,
            growth_tokens=attempt.growth_tokens,
            avoid=request.avoid | {attempt.decode_epoch, attempt.prefill_epoch},
        )
        roster, host = self._board.roster, prefill.announce.host_identity
        views = roster.shortlist(need, request.job.model, host)
        view = place_decode(need, views, prefill.giver, host)
        if view is None:
            view = _that_keeps(attempt, roster.view(attempt.prefill_epoch))
        decode = self._board.members.get(view.epoch) if view is not None else None
        if decode is None:
            return False
        stays = decode is prefill
        moved = Attempt(
            worker_pb2.AttemptKey(
                submission_id=request.job.submission_id,
                attempt=next_attempt(attempt.key.attempt, request.job.fence),
            ),
            row=self._board.next_row(),
            prefill_epoch=attempt.prefill_epoch,
            decode_epoch=decode.epoch,
            n_tokens=attempt.n_tokens,
            first_index=attempt.first_index,
            growth_tokens=attempt.growth_tokens,
            page_tokens=decode.announce.page_tokens,
            now=now,
            moved_from=attempt,
            prefill_pages=0 if stays else attempt.prefill_pages,
        )
        moved.due = now + self._board.config.dispatch.retarget_wait_s
        self._board.alarm(request, moved.due)
        to_prefill = commands.retarget(attempt.key, moved, decode)
        to_decode = None if stays else commands.assign_decode(request, moved, prefill, decode, now)
        self._board.cancel(attempt.decode_epoch, attempt.key.submission_id, attempt.key.attempt)
        attempt.life.advance(A.OVER)
        self._board.set_attempt(request, moved)
        self._board.counters["retargets"] += 1
        self._board.send(prefill.epoch, to_prefill)
        if to_decode is not None:
            self._board.send(decode.epoch, to_decode)
        return True

    def hand_over(self, request: Request, attempt: Attempt, now: float) -> bool:
        """Resume a request of a draining decode worker elsewhere, if there is room now. False if
        not."""
        reserve = self._board.config.admission.growth_reserve_tokens
        need = Need(
            n_tokens=request.n_tokens,
            growth_tokens=request.growth_tokens(reserve),
            avoid=request.avoid,
        )
        views = self._board.roster.shortlist(need, request.job.model)
        same = [view for view in views if view.fingerprint == request.fingerprint]
        placement = place(need, same)
        decode = placement and self._board.members.get(placement.decode.epoch)
        if not (placement and decode) or placement.decode.rows >= decode.announce.decode_rows:
            return False  # it runs here, but would have to wait there
        if attempt.state is not A.PLACED or not self.retarget(request, now):
            self.retry(request, "handed_over", now, is_failure=False)
        return True

    def session_opened(self, member: Member, now: float) -> None:
        """Send everything again, and request all events again, because it is unknown what arrived
        before the session broke. Cancels are sent first, as they may free the labels of new
        rows."""
        epoch = member.epoch
        for submission_id, number in member.cancels:
            self._board.say_cancelled(epoch, submission_id, number)
        for gone in self._board.members.proofs:
            self._board.send(epoch, commands.peer_gone(gone))
        if member.wish is not None:
            self._board.send(epoch, commands.drain(member.wish.again()))
        for request, attempt in self._board.attempts_at(epoch):
            name = request.job.submission_id
            self._guard.run("asked for again", name, now, self._ask_again, request, attempt, epoch)

    def _ask_again(self, request: Request, attempt: Attempt, epoch: int) -> None:
        if attempt.state is A.MOVING and epoch == attempt.prefill_epoch:
            decode = self._board.members.get(attempt.decode_epoch)
            if decode is not None:
                old = worker_pb2.AttemptKey(
                    submission_id=attempt.key.submission_id, attempt=attempt.prefill_numbers[-1]
                )
                self._board.send(epoch, commands.retarget(old, attempt, decode))
        elif attempt.state is not A.DECODING or epoch == attempt.decode_epoch:
            self.attach(request, epoch)

    def attach(self, request: Request, epoch: int) -> None:
        """Request the events that the router does not have. A row that another router began is
        adopted first, because this worker may have been missing when the others were asked."""
        attempt = request.attempt
        assert attempt is not None
        if fence_of(attempt.key.attempt) < request.job.fence:
            self._board.send(epoch, commands.adopt(request.job))
        n_known = len(request.answer.tokens)
        self._board.send(epoch, commands.attach(attempt.key, n_known, attempt.row))

    def tick(self, request: Request, now: float) -> None:
        """Check the time limits of a RUNNING request."""
        attempt = request.attempt
        assert attempt is not None
        config = self._board.config.dispatch
        if attempt.gap_due is not None and now >= attempt.gap_due:
            self.retry(request, "missing_events", now)
        elif attempt.due is not None and now >= attempt.due:
            if attempt.state is A.PLACED:  # it must move to another D
                attempt.due = now + config.move_pause_s
                self.retarget(request, now)
            else:
                moving = attempt.state is A.MOVING
                self.retry(request, "not_retargeted" if moving else "prefill_worker_lost", now)
        elif now - attempt.last_news > config.stall_s:
            self.avoid(request, attempt.prefill_epoch, attempt.decode_epoch)  # guard: stalled pair
            self.retry(request, "stalled", now)

    def next_look(self, request: Request) -> float:
        """The next time at which `tick` may have something to do for a RUNNING request."""
        attempt = request.attempt
        assert attempt is not None
        stall_due = attempt.last_news + self._board.config.dispatch.stall_s
        dues = (stall_due, attempt.gap_due, attempt.due)
        return min(due for due in dues if due is not None)

    def unplaced(self, request: Request, now: float) -> None:
        """P cannot hand the row to D. Try another D, now and at intervals."""
        attempt = request.attempt
        assert attempt is not None
        if attempt.state is not A.PLACED or attempt.wants_move:
            return
        attempt.wants_move = True
        attempt.due = now + self._board.config.dispatch.move_pause_s
        self._board.alarm(request, attempt.due)
        self.retarget(request, now)

    def undelivered(self, request: Request) -> None:
        """P could not deliver the row to D. Use another D next; if the request has failed before,
        also another P."""
        attempt = request.attempt
        assert attempt is not None
        both = (attempt.decode_epoch, attempt.prefill_epoch)
        self.avoid(request, *both[: 1 + bool(request.failures)])

    def avoid(self, request: Request, *epochs: int) -> None:
        """Prefer other workers for this request from now on."""
        request.avoid |= {*epochs}

    def refused(self, request: Request, epoch: int, reason: str, message: str, now: float) -> None:
        """A worker has refused the row: try another worker, if there is one. If the label is in use
        by another request, this one fails, unless it has tokens already: then it is the earlier
        one."""
        is_in_use = reason == Refusal.REQUEST_IN_USE
        if is_in_use and not request.answer.tokens:
            self._endings.fail(request, request.job.label.in_use_error())
            return
        self.avoid(request, epoch)
        is_refusal = is_in_use or reason in NOT_NOW
        self.retry(
            request,
            f"refused.{reason or 'unknown'}",
            now,
            is_failure=not is_refusal,
            is_refusal=is_refusal,
            detail=message,
        )


def _that_keeps(attempt: Attempt, view: WorkerView | None) -> WorkerView | None:
    """The attempt's prefill worker `view`, if it also decodes and has room for the answer; else
    None."""
    if view is None or not view.decodes:
        return None
    return view if view.has_room(attempt.growth_tokens) else None
