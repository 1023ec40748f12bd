"""The dispatcher: admission, placement, time. Sans-IO: inputs are calls with `now`, outputs are
`take_outbox` (commands by worker epoch) and `take_news` (requests with news for their clients).
Only `submit`, `tick` and `settle` give work to workers: after other calls the caller must call
`settle`, once for several.

    submit ──> queue ──place──> attempt ──events──> answer ──> end
                 ^                 │
                 └──── recovery ───┘
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from hmac import compare_digest

from twolane.errors import InvalidParameterError, TakenOverError, TwolaneError
from twolane.router.config import RouterConfig
from twolane.router.dispatch import commands
from twolane.router.dispatch.admission import Admission
from twolane.router.dispatch.adopting import Adopting
from twolane.router.dispatch.board import Board, DispatchObserver, NullDispatchObserver, OutMessage
from twolane.router.dispatch.drain_check import check_ticket, check_undo
from twolane.router.dispatch.endings import LET_GO_S, Endings
from twolane.router.dispatch.events import Events
from twolane.router.dispatch.fault_boundary import FaultBoundary
from twolane.router.dispatch.placing import Placing
from twolane.router.dispatch.recovery import Recovery
from twolane.router.dispatch.request_clock import RequestClock
from twolane.router.members.member import Member
from twolane.router.members.membership import Membership
from twolane.router.members.own_pause import excuse_silence
from twolane.router.members.sound_numbers import check_load
from twolane.router.requests.adopted import KnownAttempt
from twolane.router.requests.answer import Answer
from twolane.router.requests.request import Job, Label, Request
from twolane.router.store import Store
from twolane.router.tenants.accounts import no_limits
from twolane.router.text.detokenizer import Detokenizer
from twolane.rpc.columns import tokens_of
from twolane.rpc.log_rate import LogRate
from twolane.rpc.params import params_to_proto
from twolane.security.keys import TenantLimits
from twolane.v1 import cluster_pb2, drain_pb2, inference_pb2, worker_pb2

log = logging.getLogger(__name__)


class Dispatcher:
    """Runs one router's requests on the workers that it sees."""

    def __init__(
        self,
        config: RouterConfig,
        observer: DispatchObserver | None = None,
        limits_of: Callable[[str], TenantLimits] = no_limits,
        store: Store | None = None,
    ) -> None:
        """The limits that `limits_of` returns for a tenant may change at any time."""
        self.board = Board(config, observer or NullDispatchObserver(), limits_of, store)
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
        self._log_rate = LogRate()
        self.board.store.listen(self._placing.note_prefix)

    def configure(self, config: RouterConfig) -> None:
        """From now on this one holds: its limits, its admission, and when workers are suspect."""
        self.board.configure(config)

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
        max_tokens: int = 0,
    ) -> None:
        """The checks of a request that need no prompt. `max_tokens` is 0 if not known yet. Raises
        as `submit`."""
        self._admission.check_quotas(tenant, 0, now)
        self._admission.check_room(model, priority, tenant, left_s, now, max_tokens=max_tokens)

    def submit(self, job: Job, detokenizer: Detokenizer | None, now: float) -> Request:
        """Admit a job. Raises `DuplicateRequestError`, `DeadlineError`, `OverloadedError` or
        `QuotaError`. The caller must have claimed its label."""
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
        self.board.traffic.arrived(request)
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
        """Continue rows that another router began; see `Adopting.from_rows`."""
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
        """Continue an answer of which only its client has tokens, ahead of new requests."""
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
        """End an answer's earlier stream here, because its client resumes it at this router before
        the loss of the first stream was noticed."""
        name = wanted.submission_id
        if isinstance(wanted, inference_pb2.ResumeRequest) and wanted.request_id:
            name = self.board.labels.get(Label(tenant, wanted.request_id), "")
        request = self.board.find(name, tenant)
        if request is not None and compare_digest(request.job.resume_token, wanted.resume_token):
            if 0 < wanted.takeover <= request.job.fence:
                raise TakenOverError("a later takeover at this router has that answer")
            self._endings.let_go(request, now)

    def abandon(self, request: Request, now: float, within_s: float = LET_GO_S) -> None:
        """End a request, and leave its rows for `within_s` to the router at which its client
        continues."""
        self._endings.let_go(request, now, within_s)

    def end(self, submission_id: str, error: TwolaneError, now: float) -> bool:
        """End a request with `error`. False if there is no such live request."""
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
        self._look_after_lost(now)  # the session may have retired another incarnation
        self._recovery.session_opened(member, now)

    def session_broken(self, epoch: int, now: float) -> None:
        if self.members.get(epoch) is not None:
            self.members.broken(epoch)
            self._look_after_lost(now)

    def session_refused(self, epoch: int, now: float) -> None:
        """A dial failed: there was no answer, or one of another epoch."""
        if self.members.get(epoch) is not None:
            self.members.refused(epoch)
            self._look_after_lost(now)

    def announce(self, announce: cluster_pb2.AnnounceRequest, now: float) -> bool:
        """Returns whether a session must be dialled for this epoch."""
        member = self.members.announce(announce, now)
        self._look_after_lost(now)
        return member is not None

    def report_gone(self, epoch: int, now: float, *, host: str | None = None) -> None:
        """Record the proof that no process of this epoch runs, and report it to every worker to
        which it may have sent pages. For `host` and errors see `Membership`."""
        self.members.report_gone(epoch, now, host=host)
        for member in self.members:
            self.board.send(member.epoch, commands.peer_gone(epoch))
        self._look_after_lost(now)

    def drain(self, member: Member, *, undo: bool = False, hand_over: bool = False) -> None:
        """Drain a worker, or undo that. Raises `PreconditionError` if its ticket was taken."""
        check_undo(member, undo=undo)
        self.members.drain(member.worker_id, undo=undo, hand_over=hand_over)
        assert member.wish is not None
        self.board.send(member.epoch, commands.drain(member.wish.first()))

    def wish_roles(self, epoch: int, roles: Sequence[worker_pb2.Role]) -> None:
        """Have a worker offer these roles, unless it does. Nothing is remembered: the controller
        says it again until the worker's report shows it."""
        member = self.members.get(epoch)
        if member is not None and sorted(member.load.roles) != sorted(roles):
            self.board.send(epoch, commands.set_roles(roles))

    def traffic(self, now: float) -> cluster_pb2.Traffic:
        """As `Traffic.report`."""
        board = self.board
        models = {member.announce.model for member in self.members}
        views = [view for model in sorted(models) for view in board.roster.all(model)]
        return board.traffic.report(board.queue, board.n_expecting, views, now)

    def take_ticket(self, member: Member, ticket: int) -> None:
        """Make a drain final. Raises `PreconditionError` if the worker has not given that
        ticket."""
        check_ticket(member, ticket)
        self.board.send(member.epoch, commands.drain(drain_pb2.Drain(take_ticket=ticket)))

    def on_message(self, epoch: int, message: worker_pb2.SessionResponse, now: float) -> None:
        """Handle a message of a worker's session: tokens first, because row events may end the same
        rows."""
        member = self.members.get(epoch)
        if member is None:
            self.board.drop("unknown_worker")
            return
        load = self._load_of(member, message, now)
        self.members.heard(epoch, load, now)
        guard, events = self._guard, self._events
        for columns in message.tokens:
            self._tokens(epoch, columns, now)
        for row in message.rows:
            guard.run("told", row.key.submission_id, now, events.row, epoch, row, now)
        member.heard = message.number or member.heard
        if load is not None and load.HasField("drain"):
            self._follow_drain(member, now)

    def _load_of(
        self, member: Member, message: worker_pb2.SessionResponse, now: float
    ) -> worker_pb2.LoadReport | None:
        """The report in the message. One that cannot be computed with is refused, counted and
        logged: the last good one holds, and the worker's rows go on."""
        if not message.HasField("load"):
            return None
        try:
            check_load(message.load)
        except InvalidParameterError as error:
            self.board.drop("malformed_load")
            if n := self._log_rate.take(member.worker_id, now):
                log.error("%d load reports of %s are refused: %s", n, member.worker_id, error)
            return None
        return message.load

    def _follow_drain(self, member: Member, now: float) -> None:
        """Follow a worker's drain, whose ticket waits for our confirmations."""
        if member.heard > member.confirmed:
            member.confirmed = member.heard
            self.board.send(member.epoch, commands.heartbeat(member.heard))
        if not member.load.drain.hands_over:
            return
        for request, attempt in self.board.attempts_at(member.epoch):
            if attempt.decode_epoch == member.epoch:
                name, hand_over = request.job.submission_id, self._recovery.hand_over
                if self._guard.run("handed over", name, now, hand_over, request, attempt, now):
                    self.settle(now)  # so that the next one sees the remaining room

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

    def tick(self, now: float, late_s: float = 0.0) -> None:
        """Handle time limits. Call it often: deadlines and silence are noticed only here.
        `late_s`: by how much this call is later than it should be."""
        self._guard.check()
        self.board.now = now
        excuse_silence(self.members, late_s, now)
        self._clock.excuse(late_s, now)
        self.members.tick(now)
        self._look_after_lost(now)
        self.board.cancel_due()
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self.board.config.membership.heartbeat_s
            for member in self.members:
                self.board.send(member.epoch, commands.heartbeat(member.heard))
        self._admission.note_servable(self.members.servable_models(), now)
        self._clock.tick(now)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Give work to workers if they may have got room. Call it once after a batch of inputs."""
        self._placing.place_waiting(now)

    def take_outbox(self) -> list[OutMessage]:
        """Take the commands in order, each with its worker's epoch, whose session is open or was a
        moment ago."""
        return self.board.take_outbox()

    def take_news(self) -> list[Request]:
        """Take the requests with news for their clients; a request may occur twice."""
        return self.board.take_news()

    def _look_after_lost(self, now: float) -> None:
        for member in self.members.take_lost():
            if self.members.is_lost(member, now):
                self._recovery.worker_lost(member, now)
