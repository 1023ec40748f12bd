"""Requests that wait are given to workers, from the head of each model's queue, until the head must
wait. A head that found no place is tried again only when some worker has got room for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.attempt_number import first_attempt, next_attempt
from twolane.router.dispatch import commands
from twolane.router.dispatch.admission import Admission
from twolane.router.dispatch.affinity import PrefixAffinity
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.policy import Placement, place
from twolane.router.members.member import MemberState
from twolane.router.members.model import pages_for
from twolane.router.members.worker_view import Need
from twolane.router.requests.attempt import Attempt
from twolane.router.requests.request import Request, RequestState
from twolane.v1 import worker_pb2


class Placing:
    """See the module's docstring."""

    def __init__(
        self, board: Board, endings: Endings, admission: Admission, guard: FaultBoundary
    ) -> None:
        self._board = board
        self._endings = endings
        self._admission = admission
        self._guard = guard
        self._affinity = PrefixAffinity(is_there=self._is_there)
        self._n_given = 0
        self._stuck: dict[str, Request] = {}  # by model: the head that found no place

    def place_waiting(self, now: float) -> None:
        """Cheap if nothing has changed: call it whenever something may have."""
        queue = self._board.queue
        if not queue:
            self._stuck.clear()
            self._board.roster.forget_news()
            return
        for model in queue.models():
            while (head := queue.head(model)) is not None:
                if head is self._stuck.get(model) and not self._has_news_for(head, model):
                    break
                name = head.job.submission_id
                placed = self._guard.run("placed", name, now, self._place, head, now)
                if not placed and not head.is_over:
                    self._stuck[model] = head
                    break
                self._stuck.pop(model, None)

    def _has_news_for(self, head: Request, model: str) -> bool:
        roster = self._board.roster
        return roster.has_news(model) and roster.has_news_for(self._need(head), model)

    def _is_there(self, epoch: int) -> bool:
        member = self._board.members.get(epoch)
        return member is not None and member.state is not MemberState.GONE

    def note_prefix(self, hashes: Sequence[int], epoch: int) -> None:
        """A worker is being given a prompt with these beginnings, by us or by another router."""
        self._affinity.record(hashes, epoch)

    def _need(self, request: Request, cached_tokens: dict[int, int] | None = None) -> Need:
        return Need(
            n_tokens=request.n_tokens,
            growth_tokens=request.growth_tokens(self._board.config.admission.growth_reserve_tokens),
            cached_tokens=cached_tokens or {},
            avoid=request.avoid,
        )

    def _place(self, request: Request, now: float) -> bool:
        """Commands are made before anything changes: a bug in making them harms nothing. What
        cannot be answered in time any more gets no work, but its error."""
        job, board = request.job, self._board
        need = self._need(request, self._affinity.lookup(job.prefix_hashes))
        placement = place(need, board.roster.shortlist(need, job.model))
        if placement is None:
            return False
        late = self._admission.late_error(request, now)
        if late is not None:
            self._endings.fail(request, late)
            return False
        attempt = _attempt(request, board.next_row(), need, placement, now)
        prefill = board.members.get(attempt.prefill_epoch)
        decode = board.members.get(attempt.decode_epoch)
        assert prefill is not None
        assert decode is not None
        assigns = commands.assigns(request, attempt, prefill, decode, now)
        board.queue.pay(request)
        board.advance(request, RequestState.RUNNING)
        board.set_attempt(request, attempt)
        for epoch, command in assigns:
            board.send(epoch, command)
        self._n_given += 1
        prefill.last_given = self._n_given
        self.note_prefix(job.prefix_hashes, prefill.epoch)
        board.store.note_prefix(job.prefix_hashes, prefill.epoch)
        if request.timeline.dispatched is None:
            request.timeline.dispatched = now
            board.observer.queued(job.model, now - job.arrived)
            self._admission.note_dispatch(request, now)
        return True


def _attempt(request: Request, row: int, need: Need, placement: Placement, now: float) -> Attempt:
    last = request.last_attempt
    fence = request.job.fence
    number = next_attempt(last.key.attempt, fence) if last else first_attempt(fence)
    return Attempt(
        worker_pb2.AttemptKey(submission_id=request.job.submission_id, attempt=number),
        row=row,
        prefill_epoch=placement.prefill.epoch,
        decode_epoch=placement.decode.epoch,
        n_tokens=need.n_tokens,
        first_index=len(request.answer.tokens),
        growth_tokens=need.growth_tokens,
        page_tokens=placement.decode.page_tokens,
        now=now,
        prefill_pages=_pages_at_prefill(placement, need.n_tokens),
    )


def _pages_at_prefill(placement: Placement, n_tokens: int) -> int:
    """Pages that decoding rows of the prefill worker do without until the prompt is elsewhere."""
    prefill = placement.prefill
    goes_out = prefill.epoch != placement.decode.epoch
    return pages_for(n_tokens, prefill.page_tokens) if goes_out and prefill.decodes else 0
