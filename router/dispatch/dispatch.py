"""The dispatcher: admission, placement, time. Sans-IO: inputs are calls with `now`, outputs are
`take_outbox` (commands by worker epoch) and `take_touched` (requests with news for their clients).
Work is given to workers by `submit`, `tick` and `settle`: whoever calls anything else settles after
it, once for several.

    submit ──> queue ──place──> attempt ──events──> answer ──> end
                 ^                 │
                 └──── recovery ───┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hmac import compare_digest

from twolane.errors import TakenOverError, TwolaneError
from twolane.router.config import RouterConfig
from twolane.router.dispatch import commands
from twolane.router.dispatch.admission import Admission
from twolane.router.dispatch.adopting import Adopting
from twolane.router.dispatch.board import Board, NullObserver, Observer, OutMessage
from twolane.router.dispatch.drain_check import check_ticket, check_undo
from twolane.router.dispatch.endings import Endings
from twolane.router.dispatch.events import Events
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.placing import Placing
from twolane.router.dispatch.recovery import Recovery
from twolane.router.dispatch.request_clock import RequestClock
from twolane.router.members.member import Member
from twolane.router.members.membership import Membership
from twolane.router.requests.adopted import KnownAttempt
from twolane.router.requests.answer import Answer
from twolane.router.requests.request import Job, Request
from twolane.router.store import Store
from twolane.router.tenants.accounts import no_limits
from twolane.router.text.detokenizer import Detokenizer
from twolane.rpc.columns import tokens_of
from twolane.rpc.params import params_to_proto
from twolane.security.keys import TenantLimits
from twolane.v1 import cluster_pb2, inference_pb2, worker_pb2


class Dispatcher:
    """One router's requests on one router's view of the workers."""

    def __init__(
        self,
        config: RouterConfig,
        observer: Observer | None = None,
        limits_of: Callable[[str], TenantLimits] = no_limits,
        store: Store | None = None,
    ) -> None:
        """`limits_of` a tenant may change at any time."""
        self.board = Board(config, observer or NullObserver(), limits_of, store)
        self._config = config
        self._endings = Endings(self.board)
        self._guard = FaultBoundary(self.board, self._endings)
        self._recovery = Recovery(self.board, self._endings, self._guard)
        self._events = Events(self.board, self._endings, self._recovery)
        self._admission = Admission(self.board, self._endings)
        self._placing = Placing(self.board, self._endings, self._admission, self._guard)
        self._clock = RequestClock(
            self.board, self._endings, self._recovery, self._admission, self._guard
        )
        self._adopting = Adopting(self.board, self._endings, self._recovery)
        self._heartbeat_due = 0.0
        self.board.store.listen(self._placing.note_prefix)

    @property
    def members(self) -> Membership:
        return self.board.members

    # Clients

    def check_room(
        self,
        now: float,
        *,
        model: str = "",
        priority: int = 0,
        tenant: str = "",
        left_s: float | None = None,
    ) -> None:
        """What can be said of a request before its prompt is looked at. Raises as `submit`."""
        self._admission.check_quotas(tenant, 0, now)
        self._admission.check_room(model, priority, tenant, left_s, now)

    def submit(self, job: Job, detokenizer: Detokenizer | None, now: float) -> Request:
        """Admit a job, or refuse it: `DuplicateRequestError`, `DeadlineError`, `OverloadedError`,
        `QuotaError`. Its label is the caller's to have claimed."""
        if job.label in self.board.labels:
            raise job.label.in_use_error()
        cost = self.board.outlook.cost_tokens(job)
        account = self._admission.check_quotas(job.tenant, cost, now)
        self._admission.check(job, now)
        answer = Answer(detokenizer, job.params.stop, job.params.min_tokens)
        request = Request(job, answer, params_to_proto(job.params))
        request.cost_tokens = cost
        account.take(cost, now)
        self.board.add(request)
        self.board.observer.admitted(job.model, request.n_prompt)
        self.settle(now)
        self._clock.begin(request, now)
        return request

    def adopt(
        self,
        job: Job,
        known: KnownAttempt,
        detokenizer: Detokenizer | None,
        n_tokens: int,
        n_text_bytes: int,
        now: float,
    ) -> Request:
        """Go on with rows that another router began; see `Adopting.from_rows`."""
        request = self._adopting.from_rows(job, known, detokenizer, n_tokens, n_text_bytes, now)
        self.settle(now)
        self._clock.begin(request, now)
        return request

    def resume(
        self,
        job: Job,
        detokenizer: Detokenizer | None,
        token_ids: Sequence[int],
        n_text_bytes: int,
        now: float,
    ) -> Request:
        """Go on with an answer of which only its client knows: ahead of new work."""
        facts = [m.announce for m in self.members if m.announce.model == job.model]
        eos = frozenset(token for told in facts for token in told.eos_token_ids)
        request = self._adopting.from_client(job, detokenizer, token_ids, n_text_bytes, eos, now)
        self.settle(now)
        self._clock.begin(request, now)
        return request

    def let_go(
        self,
        wanted: inference_pb2.ResumeRequest | inference_pb2.AnswerSoFar,
        tenant: str,
        now: float,
    ) -> None:
        """Its client asks for it again, here, before its first stream is missed: that ends."""
        request = self.board.find(wanted.submission_id, tenant)
        if request is not None and compare_digest(request.job.resume_token, wanted.resume_token):
            if 0 < wanted.takeover <= request.job.fence:
                raise TakenOverError("a later takeover has that answer, at this router")
            self._endings.let_go(request, now)

    def abandon(self, request: Request, now: float) -> None:
        """Its rows are left to the next router of its client, which is on its way."""
        self._endings.let_go(request, now)

    def end(self, submission_id: str, error: TwolaneError, now: float) -> bool:
        """End a request with `error`. False: there is no such request (any more)."""
        request = self.board.requests.get(submission_id)
        if request is None:
            return False
        self._guard.run("ended", submission_id, now, self._endings.fail, request, error)
        return True

    # Workers

    def session_opened(self, epoch: int, now: float) -> None:
        self.members.opened(epoch, now)
        member = self.members.get(epoch)
        assert member is not None
        member.heard = member.confirmed = 0
        self._look_after_lost(now)  # it may have taken the place of another incarnation
        self._recovery.session_opened(member, now)

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

    def report_gone(self, epoch: int, now: float, *, host: str | None = None) -> None:
        """Proof: no process of this epoch runs. Passed on to every worker that it may have fed.
        `host`, and what is raised: see `Membership`."""
        self.members.report_gone(epoch, now, host=host)
        for member in self.members:
            self.board.send(member.epoch, commands.peer_gone(epoch))
        self._look_after_lost(now)

    def drain(self, member: Member, *, undo: bool = False, hand_over: bool = False) -> None:
        """Raises `PreconditionError`: its ticket was taken."""
        check_undo(member, undo=undo)
        self.members.drain(member.worker_id, undo=undo, hand_over=hand_over)
        assert member.drain_wanted is not None
        self.board.send(member.epoch, commands.drain(member.drain_wanted))

    def take_ticket(self, member: Member, ticket: int) -> None:
        """Raises `PreconditionError`: it has not given that one."""
        check_ticket(member, ticket)
        self.board.send(member.epoch, commands.drain(worker_pb2.Drain(take_ticket=ticket)))

    def on_message(self, epoch: int, message: worker_pb2.SessionResponse, now: float) -> None:
        """One message of a worker's session: tokens first, since row news may end what they end."""
        member = self.members.get(epoch)
        if member is None:
            self.board.drop("unknown_worker")
            return
        self.members.heard(epoch, message.load if message.HasField("load") else None, now)
        guard, events = self._guard, self._events
        for columns in message.tokens:
            self._tokens(epoch, columns, now)
        for row in message.rows:
            guard.run("told", row.key.submission_id, now, events.row, epoch, row, now)
        member.heard = message.number or member.heard
        if message.HasField("load") and message.load.HasField("drain"):
            self._follow_drain(member, now)

    def _follow_drain(self, member: Member, now: float) -> None:
        """Its ticket waits for what we confirm."""
        if member.heard > member.confirmed:
            member.confirmed = member.heard
            self.board.send(member.epoch, commands.heartbeat(member.heard))
        if not member.load.drain.hands_over:
            return
        for request, attempt in self.board.attempts_at(member.epoch):
            if attempt.decode_epoch == member.epoch:
                name, hand_over = request.job.submission_id, self._recovery.hand_over
                if self._guard.run("handed over", name, now, hand_over, request, attempt, now):
                    self.settle(now)  # the next one finds the room that is left

    def _tokens(self, epoch: int, columns: worker_pb2.TokenColumns, now: float) -> None:
        role, rows = columns.role, self.board.rows
        if any(columns.samples):  # a request has one answer, of sample 0
            self.board.drop("unknown_sample")
            return
        try:
            told = list(tokens_of(columns))
        except ValueError:
            self.board.drop("malformed")
            return
        for token in told:
            request = rows.get(token[0])
            if request is None:
                self.board.drop("unknown_row")
                continue
            name = request.job.submission_id
            self._guard.run("told", name, now, self._events.token, request, epoch, role, token, now)

    # Time

    def tick(self, now: float) -> None:
        """Call often: it bounds how late a deadline or a suspicion is noticed."""
        self._guard.check()
        self.board.now = now
        self.members.tick(now)
        self._look_after_lost(now)
        self.board.cancel_due()
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self._config.membership.heartbeat_s
            for member in self.members:
                self.board.send(member.epoch, commands.heartbeat(member.heard))
        self._admission.note_servable(self.members.servable_models(), now)
        self._clock.tick(now)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Give work to workers, if something has happened that lets them have more. Call it once
        for all that has come in."""
        self._placing.place_waiting(now)

    def take_outbox(self) -> list[OutMessage]:
        """Commands in order, by worker epoch; the session of each is open, or was a moment ago."""
        return self.board.take_outbox()

    def take_touched(self) -> list[Request]:
        """Requests with something for their client; one may be named twice."""
        return self.board.take_touched()

    def _look_after_lost(self, now: float) -> None:
        for member in self.members.take_lost():
            if self.members.is_lost(member, now):
                self._recovery.worker_lost(member, now)
