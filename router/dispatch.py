"""The dispatcher: admission, placement, time. Sans-IO: inputs are calls with `now`, outputs are
`take_outbox` (commands by worker epoch) and `take_touched` (requests with news for their clients).

    submit ──> queue ──place──> attempt ──events──> answer ──> end
                 ^                 │
                 └──── recovery ───┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from router import commands
from router.admission import Admission
from router.affinity import PrefixAffinity
from router.answer import Answer
from router.attempt import Attempt
from router.board import Board, NullObserver, Observer, OutMessage
from router.bugs import BugLog
from router.config import RouterConfig
from router.detokenizer import Detokenizer
from router.endings import Endings
from router.events import Events
from router.membership import Membership
from router.model import pages_for
from router.policy import Need, Placement, place
from router.recovery import Recovery
from router.request import Job, Request, RequestState
from router.store import MemoryStore, Store
from twolane.attempt_number import first_attempt, next_attempt
from twolane.errors import DeadlineError, TwolaneError
from twolane.rpc.params import params_to_proto
from twolane.v1 import cluster_pb2, worker_pb2

S = RequestState
ResultT = TypeVar("ResultT")


class Dispatcher:
    """One router's requests on one router's view of the workers."""

    def __init__(
        self, config: RouterConfig, store: Store | None = None, observer: Observer | None = None
    ) -> None:
        self.board = Board(config, store or MemoryStore(), observer or NullObserver())
        self._config = config
        self._endings = Endings(self.board)
        self._recovery = Recovery(self.board, self._endings)
        self._events = Events(self.board, self._endings, self._recovery)
        self._admission = Admission(self.board, self._endings)
        self._affinity = PrefixAffinity()
        self._bugs = BugLog()
        self._heartbeat_due = 0.0

    @property
    def members(self) -> Membership:
        return self.board.members

    # Clients

    def submit(self, job: Job, detokenizer: Detokenizer | None, now: float) -> Request:
        """Admit a job, or refuse it: `DuplicateRequestError`, `DeadlineError`, `OverloadedError`.
        Its label is the caller's to have claimed."""
        if job.label in self.board.labels:
            raise job.label.in_use_error()
        self._admission.check(job, now)
        answer = Answer(detokenizer, job.params.stop, job.params.min_tokens)
        request = Request(job, answer, params_to_proto(job.params))
        self.board.add(request)
        self.board.observer.admitted(job.model, request.n_prompt)
        self.board.has_room_news = True
        self._place_waiting(now)
        return request

    def end(self, submission_id: str, error: TwolaneError, now: float) -> bool:
        """End a request with `error`. False: there is no such request (any more)."""
        request = self.board.requests.get(submission_id)
        if request is None:
            return False
        self._endings.fail(request, error)
        self._place_waiting(now)
        return True

    # Workers

    def session_opened(self, epoch: int, now: float) -> None:
        self.members.opened(epoch, now)
        member = self.members.get(epoch)
        assert member is not None
        self._recovery.session_opened(member)
        self.board.has_room_news = True
        self._place_waiting(now)

    def session_broken(self, epoch: int, now: float) -> None:
        if self.members.get(epoch) is not None:
            self.members.broken(epoch)
            self._look_after_lost(now)

    def session_refused(self, epoch: int, now: float) -> None:
        """A dial failed: nobody there, or another epoch answers."""
        if self.members.get(epoch) is not None:
            self.members.refused(epoch)
            self._look_after_lost(now)

    def announce(self, announce: cluster_pb2.AnnounceRequest, now: float) -> bool:
        """Returns whether a session must be dialled for this epoch."""
        member = self.members.announce(announce, now)
        self._look_after_lost(now)
        return member is not None

    def report_gone(self, epoch: int, now: float) -> None:
        """Proof: no process of this epoch runs. Passed on to every worker that it may have fed."""
        self.members.report_gone(epoch, now)
        for member in self.members:
            self.board.send(member.epoch, commands.peer_gone(epoch))
        self._look_after_lost(now)

    def drain(self, worker_id: str, *, undo: bool) -> bool:
        """False: there is no such worker."""
        member = self.members.drain(worker_id, undo=undo)
        if member is None:
            return False
        self.board.send(member.epoch, commands.drain(not undo))
        self.board.has_room_news = True
        return True

    def on_message(self, epoch: int, message: worker_pb2.SessionResponse, now: float) -> None:
        """One message of a worker's session: tokens first, since row news may end what they end."""
        if self.members.get(epoch) is None:
            self.board.drop("unknown_worker")
            return
        has_load = message.HasField("load")
        self.members.heard(epoch, message.load if has_load else None, now)
        for token in message.tokens:
            self._guard("told", token.key.submission_id, now, self._events.token, epoch, token, now)
        for row in message.rows:
            self._guard("told", row.key.submission_id, now, self._events.row, epoch, row, now)
        self.board.has_room_news |= has_load
        self._place_waiting(now)

    # Time

    def tick(self, now: float) -> None:
        """Call often: it bounds how late a deadline or a suspicion is noticed."""
        self.board.now = now
        self.members.tick(now)
        self._look_after_lost(now)
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self._config.membership.heartbeat_s
            for member in self.members:
                self.board.send(member.epoch, commands.heartbeat())
        self._admission.note_servable(self.members.servable_models(), now)
        for submission_id, request in list(self.board.requests.items()):
            self._guard("ticked", submission_id, now, self._tick_request, request, now)
        self.board.has_room_news = True
        self._place_waiting(now)

    def take_outbox(self) -> list[OutMessage]:
        """Commands in order, by worker epoch; the session of each is open, or was a moment ago."""
        return self.board.take_outbox()

    def take_touched(self) -> list[Request]:
        """Requests with something for their client; one may be named twice."""
        return self.board.take_touched()

    def _look_after_lost(self, now: float) -> None:
        for member in list(self.members):
            if self.members.is_lost(member, now):
                self._recovery.worker_lost(member, now)

    def _tick_request(self, request: Request, now: float) -> None:
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

    def _place_waiting(self, now: float) -> None:
        """Give work to workers, from the head of each model's queue, until the head must wait."""
        if not self.board.has_room_news:
            return
        self.board.has_room_news = False
        for model in self.board.queue.models():
            while (head := self.board.queue.head(model)) is not None:
                placed = self._guard("placed", head.job.submission_id, now, self._place, head, now)
                if not placed and not head.is_over:
                    break

    def _guard(
        self, what: str, submission_id: str, now: float, work: Callable[..., ResultT], *args: Any
    ) -> ResultT | None:
        """Do what one request needs. A bug that it meets ends it, and nobody else; then None."""
        try:
            return work(*args)
        except Exception:  # noqa: BLE001 - whatever it is, the others go on
            self._bugs.tell(f"a request was {what}", now)
            request = self.board.requests.get(submission_id)
            if request is not None:
                self._endings.fail_of_bug(request, what)
            return None

    def _place(self, request: Request, now: float) -> bool:
        job = request.job
        growth = request.growth_tokens(self._config.admission.growth_reserve_tokens)
        need = Need(
            n_tokens=request.n_tokens,
            growth_tokens=growth,
            cached_tokens=self._affinity.lookup(job.prefix_hashes),
            avoid=request.avoid,
        )
        placement = place(need, self.board.model_of(self.board.views(), job.model))
        if placement is None:
            return False
        last = request.last_attempt
        number = next_attempt(last.key.attempt) if last else first_attempt(fence=0)
        attempt = Attempt(
            worker_pb2.AttemptKey(submission_id=job.submission_id, attempt=number),
            prefill_epoch=placement.prefill.epoch,
            decode_epoch=placement.decode.epoch,
            n_tokens=request.n_tokens,
            first_index=len(request.answer.tokens),
            growth_tokens=growth,
            page_tokens=placement.decode.page_tokens,
            now=now,
            prefill_pages=_pages_at_prefill(placement, request.n_tokens),
        )
        prefill = self.members.get(attempt.prefill_epoch)
        decode = self.members.get(attempt.decode_epoch)
        assert prefill is not None
        assert decode is not None
        assigns = commands.assigns(request, attempt, prefill, decode, now)
        self.board.advance(request, S.RUNNING)
        self.board.set_attempt(request, attempt)
        for epoch, command in assigns:
            self.board.send(epoch, command)
        self._affinity.record(job.prefix_hashes, prefill.epoch)
        if request.timeline.dispatched is None:
            request.timeline.dispatched = now
            self.board.observer.queued(job.model, now - job.arrived)
            self._admission.note_dispatch(now)
        return True


def _pages_at_prefill(placement: Placement, n_tokens: int) -> int:
    """Pages that decoding rows of the prefill worker do without until the prompt is elsewhere."""
    prefill = placement.prefill
    goes_out = prefill.epoch != placement.decode.epoch
    return pages_for(n_tokens, prefill.page_tokens) if goes_out and prefill.decodes else 0
