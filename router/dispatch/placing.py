"""Places waiting requests on workers, from the head of each model's queue, until the head must
wait. A head that found no place is tried again only when some worker has room for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.attempt_number import first_attempt, next_attempt
from twolane.errors import OverloadedError
from twolane.router.dispatch import commands
from twolane.router.dispatch.admission import Admission
from twolane.router.dispatch.affinity import PrefixAffinity
from twolane.router.dispatch.board import Board
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.policy import Placement, place, place_pair
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
        self._revisions_number = 0
        self._stuck: dict[str, Request] = {}  # the head that found no place, by model

    def place_waiting(self, now: float) -> None:
        """Place as many requests as possible. Cheap if nothing has changed, so call it whenever
        something may have."""
        queue = self._board.queue
        if self._revisions_number != self._board.revisions.number:  # others may take the heads
            self._revisions_number = self._board.revisions.number
            self._stuck.clear()
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
        """Record that a worker is assigned a prompt with these prefixes, by this or another
        router."""
        self._affinity.record(hashes, epoch)

    def _need(self, request: Request) -> Need:
        return Need(
            n_tokens=request.n_tokens,
            growth_tokens=request.growth_tokens(self._board.config.admission.growth_reserve_tokens),
            avoid=request.avoid,
        )

    def _place(self, request: Request, now: float) -> bool:
        """Place one request. False if it must wait. The commands are made before any table changes,
        so a bug in making them does no harm. A request that would miss its deadline fails
        instead."""
        job, board, need = request.job, self._board, self._need(request)
        if job.pair is None and not board.roster.has_room(need, job.model):
            return False  # as for most heads that wait: before looking up what is cached
        need = need._replace(cached_tokens=self._affinity.lookup(job.prefix_hashes))
        if job.pair is not None:
            prefill_view, decode_view = map(board.roster.view, job.pair)
            placement = place_pair(need, prefill_view, decode_view)
            if placement is None:
                self._endings.fail(request, _pair_busy())
                return False
        else:
            views = board.roster.shortlist(need, job.model)
            groups = board.revisions.groups(job.submission_id, request.begun, views)
            found = (place(need, group) for group in groups)
            placement = next((its for its in found if its is not None), None)
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
        for epoch in (
            {prefill.epoch, decode.epoch} if placement.decode.prefills else {prefill.epoch}
        ):
            self.note_prefix(job.prefix_hashes, epoch)
            board.store.note_prefix(job.prefix_hashes, epoch)
        if request.timeline.dispatched is None:
            request.timeline.dispatched = now
            board.traffic.placed(need.cached_tokens.get(prefill.epoch, 0))
            board.observer.queued(job.model, now - job.arrived)
            self._admission.note_dispatch(request, now)
        return True


def _pair_busy() -> OverloadedError:
    return OverloadedError("the pair that this is for takes nothing now", retry_after_s=0.5)


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
    """The pages of the prefill worker that the prompt takes from its decoding rows until it is
    sent."""
    prefill = placement.prefill
    goes_out = prefill.epoch != placement.decode.epoch
    return pages_for(n_tokens, prefill.page_tokens) if goes_out and prefill.decodes else 0
