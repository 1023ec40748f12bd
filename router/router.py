"""The router's core: the dispatcher with a clock, sessions to workers, and answers to clients.

Everything happens on one event loop; nothing here knows gRPC. An input (a client's request, a
worker's message, a tick) goes into the dispatcher; then its commands are sent and the clients with
news are woken.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing
from types import TracebackType

from twolane.errors import (
    CancelledError,
    TwolaneError,
    UnauthenticatedError,
    UnavailableError,
)
from twolane.router.background import Background
from twolane.router.claims import Claims
from twolane.router.config import RouterConfig
from twolane.router.deliveries import Deliveries, Delivery
from twolane.router.dispatch.board import Observer
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.intake import Intake, deadline_of
from twolane.router.known_routers import KnownRouters
from twolane.router.limits import check_answer_so_far, check_resume
from twolane.router.members.host_reports import HostReports
from twolane.router.members.member import Member
from twolane.router.members.model import ModelFacts
from twolane.router.members.session import WorkerDialer
from twolane.router.members.worker_sessions import WorkerSessions
from twolane.router.refusal_log import RefusalLog
from twolane.router.requests.request import Job, Label, Request
from twolane.router.status import make_service_status, make_status
from twolane.router.store import Store
from twolane.router.takeovers import Takeovers
from twolane.router.tenants.accounts import Level, no_limits
from twolane.router.text.codec import TextCodec
from twolane.router.text.detokenizer import Detokenizer
from twolane.security.identity import ANONYMOUS, Identity
from twolane.security.keys import TenantLimits
from twolane.v1 import cluster_pb2, inference_pb2, worker_pb2

log = logging.getLogger(__name__)
LAST_WORDS_S = 0.1


class Router:
    """Use as an async context manager; leaving it ends every answer with `UnavailableError`.

    `text` None serves token ids only. `limits_of` a tenant may change at any time.
    """

    def __init__(
        self,
        config: RouterConfig,
        dialer: WorkerDialer,
        text: TextCodec | None = None,
        *,
        observer: Observer | None = None,
        limits_of: Callable[[str], TenantLimits] = no_limits,
        store: Store | None = None,
    ) -> None:
        self.config = config
        self._text = text
        self._dispatcher = Dispatcher(config, observer, limits_of, store)
        self._claims = Claims(self._dispatcher.board)
        self.refusals = RefusalLog(self._dispatcher.board.counters)
        self._intake = Intake(config, self._dispatcher.members, text)
        # as others reach it; its doors are noted when they are open
        epoch = config.epoch or secrets.randbits(63) + 1  # of this process, among all of its id
        self.address = worker_pb2.RouterAddress(router_id=config.router_id, router_epoch=epoch)
        self.known = KnownRouters(self.address, self._dispatcher.board.store)
        self._deliveries = Deliveries(config.readers, self._end, self.known.client_doors)
        self._tasks = Background()
        self._sessions = WorkerSessions(self.address, config.membership, dialer, self, self._tasks)
        self._takeovers = Takeovers(config, self._dispatcher.members, self._sessions.send)
        self._is_stopping = False
        self._is_flush_due = False
        self._started = 0.0
        self.hosts = HostReports(config.membership.gone_after_s)

    async def __aenter__(self) -> Router:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._takeovers.settled_at = self._started + 2 * self.config.membership.announce_interval_s
        await self._tasks.__aenter__()
        self._tasks.start(self._tick_forever(), name="router-tick")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_accepting()
        try:
            if self._dispatcher.board.requests:
                self.end_answers()
                await asyncio.sleep(LAST_WORDS_S)  # closing a link drops what it has not sent
        finally:
            await self._tasks.__aexit__(kind, error, trace)

    # Clients

    async def generate(
        self,
        message: inference_pb2.GenerateRequest,
        caller: Identity = ANONYMOUS,
        *,
        time_left_s: float | None = None,
        default_max_tokens: int | None = None,
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        """One answer. The first response tells id, seed, model and the prompt's length, as soon as
        the request is admitted; each later one everything that waited; the last one finish_reason
        and ledger. `default_max_tokens` holds where the message sets none, as far as so many fit;
        None: what fits.

        Raises a `TwolaneError` instead of the rest. Closing the iterator early (or cancelling its
        task) cancels the request at both workers.
        """
        opening = self.open(
            message, caller, time_left_s=time_left_s, default_max_tokens=default_max_tokens
        )
        async with aclosing((await opening).responses()) as responses:
            async for response in responses:
                yield response

    async def open(
        self,
        message: inference_pb2.GenerateRequest,
        caller: Identity = ANONYMOUS,
        *,
        time_left_s: float | None = None,
        default_max_tokens: int | None = None,
    ) -> Delivery:
        """Admit a request; for the rest see `generate`. Close what is returned."""
        if message.HasField("resume"):
            check_answer_so_far(message.resume)
            self._dispatcher.let_go(message.resume, caller.tenant, self._loop.time())
        job = await self._admit(message, caller, time_left_s, default_max_tokens)
        request = self._submit(job, message)
        return self._deliveries.add(request, resumes=message.resumes)

    async def open_resumed(
        self,
        message: inference_pb2.ResumeRequest,
        caller: Identity = ANONYMOUS,
        *,
        time_left_s: float | None = None,
    ) -> Delivery:
        """Go on with an answer that another router has begun. Close what is returned. Raises
        `UnknownSubmissionError` where too little of it is left, and `TakenOverError`."""
        check_resume(message, caller)
        with self.refusals.noting():
            if self._is_stopping:
                raise UnavailableError("the router is stopping")
        self._dispatcher.let_go(message, caller.tenant, self._loop.time())
        deadline = deadline_of(self._loop.time(), time_left_s)
        job, known = await self._takeovers.take(message, caller, deadline)
        text, now = self._detokenizer(job), self._loop.time()
        n_tokens, n_text_bytes = message.n_tokens, message.n_text_bytes
        request = self._dispatcher.adopt(job, known, text, n_tokens, n_text_bytes, now)
        self._flush()
        return self._deliveries.add(request, resumes=True)

    def check_room(
        self,
        caller: Identity = ANONYMOUS,
        *,
        priority: int | None = None,
        time_left_s: float | None = None,
    ) -> None:
        """For doors, before they parse: raises `OverloadedError` or `DeadlineError` for what would
        be refused whatever it is. `priority` None: not known yet."""
        highest = self.config.limits.priority
        priority = highest if priority is None else priority
        now, left_s = self._loop.time(), time_left_s
        with self.refusals.logging():
            self._dispatcher.check_room(now, priority=priority, tenant=caller.tenant, left_s=left_s)

    def cancel(self, request_id: str, *, tenant: str = "") -> bool:
        """End the running request of that label with CANCELLED. False if there is none."""
        submission_id = self._dispatcher.board.labels.get(Label(tenant, request_id))
        return submission_id is not None and self._end_cancelled(submission_id, request_id)

    def cancel_submission(self, submission_id: str, *, tenant: str = "") -> bool:
        """The same, by the name that the router drew. False also for another tenant's."""
        request = self._dispatcher.board.find(submission_id, tenant)
        return request is not None and self._end_cancelled(submission_id, submission_id)

    def _end_cancelled(self, submission_id: str, name: str) -> bool:
        return self._end(submission_id, CancelledError(f"request {name} was cancelled by its id"))

    def _end(self, submission_id: str, error: TwolaneError) -> bool:
        found = self._dispatcher.end(submission_id, error, self._loop.time())
        self._flush()
        return found

    def end_of_keys(self, names: Collection[str]) -> None:
        """These API keys do not count any more: what was asked with them ends."""
        if not names:
            return
        requests = self._dispatcher.board.requests
        for request in [r for r in requests.values() if r.job.caller.name in names]:
            error = UnauthenticatedError(f"API key {request.job.caller.name} counts no longer")
            self._dispatcher.end(request.job.submission_id, error, self._loop.time())
        self._flush()

    def quotas(self, tenant: str) -> list[Level]:
        """What is left of those that the tenant has."""
        now = self._loop.time()
        return list(self._dispatcher.board.accounts.of(tenant, now).levels(now))

    def models(self) -> list[ModelFacts]:
        return list(self._dispatcher.members.models())

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; without a tokenizer its id as vLLM has it, `token_id:7`."""
        return self._text.token_bytes(token_id) if self._text else b"token_id:%d" % token_id

    def can_serve(self) -> bool:
        """Whether some model has a live pair of workers, and requests are accepted."""
        return not self._is_stopping and bool(self._dispatcher.members.servable_models())

    # Workers and operators

    def announce(self, announce: cluster_pb2.AnnounceRequest) -> cluster_pb2.AnnounceResponse:
        """A worker exists (or leaves). The session to it is dialled from here."""
        if self._dispatcher.announce(announce, self._loop.time()):
            self._sessions.open(announce.worker)
        self._flush()
        return cluster_pb2.AnnounceResponse(
            interval_ms=int(self.config.membership.announce_interval_s * 1000),
            routers=self.known.hear(announce.routers, self._loop.time()),
        )

    async def hand_over(self, within_s: float) -> None:
        """Before a stop: clients that can go on at another router. That is waited for."""
        self.stop_accepting()
        await self._deliveries.hand_over(within_s)

    def drain(self, worker_id: str, *, undo: bool = False, hand_over: bool = False) -> None:
        """No new requests for that worker, or again. Raises as `member` and `Dispatcher.drain`."""
        self._dispatcher.drain(self.member(worker_id), undo=undo, hand_over=hand_over)
        self._flush()

    def take_ticket(self, worker_id: str, ticket: int) -> None:
        """Its drain is final from now on. Raises as `member` and `Dispatcher.take_ticket`."""
        self._dispatcher.take_ticket(self.member(worker_id), ticket)
        self._flush()

    def member(self, worker_id: str) -> Member:
        """The worker of that name. Raises `InvalidRequestError` if unknown."""
        return self._dispatcher.members.worker(worker_id)

    def report_gone(self, epoch: int, *, host: str | None = None) -> None:
        """As `Dispatcher.report_gone`."""
        self._dispatcher.report_gone(epoch, self._loop.time(), host=host)
        self._flush()

    def service_status(
        self, submission_ids: Iterable[str], *, tenant: str = ""
    ) -> inference_pb2.GetStatusResponse:
        """What clients may know, of requests what is asked by name; other tenants' are unknown."""
        board, now = self._dispatcher.board, self._loop.time()
        found = [board.find(each, tenant) for each in submission_ids]
        return make_service_status(board, found, serving=self.can_serve(), now=now)

    def status(self, *, with_requests: bool = True) -> cluster_pb2.GetClusterStatusResponse:
        board, now = self._dispatcher.board, self._loop.time()
        status = make_status(board, started=self._started, now=now, with_requests=with_requests)
        status.hosts.extend(self.hosts.current(now))
        return status

    def check_integrity(self) -> None:
        """Raises AssertionError if the router's tables disagree with each other."""
        self._dispatcher.board.check_integrity()

    def stop_accepting(self) -> None:
        """New requests get `UnavailableError`; running ones go on."""
        self._is_stopping = True

    def end_answers(self) -> None:
        """Running ones get it now. May be called again."""
        now = self._loop.time()
        for request in self._deliveries.moved():  # their rows outlive us, for the grace
            self._dispatcher.abandon(request, now)
        for submission_id in list(self._dispatcher.board.requests):
            self._dispatcher.end(submission_id, UnavailableError("the router is stopping"), now)
        self._flush()

    # Sessions

    def session_opened(self, epoch: int, first: worker_pb2.SessionResponse) -> None:
        now = self._loop.time()
        self._dispatcher.session_opened(epoch, now)
        self._dispatcher.on_message(epoch, first, now)
        self._takeovers.on_opened(epoch)
        self._flush()

    def session_message(self, epoch: int, message: worker_pb2.SessionResponse) -> None:
        now = self._loop.time()
        self._dispatcher.on_message(epoch, message, now)
        self._takeovers.on_message(epoch, message)
        self._deliveries.pressure.note(now, self._loop.time())
        self._flush()

    def session_broken(self, epoch: int) -> None:
        self._dispatcher.session_broken(epoch, self._loop.time())
        self._takeovers.on_change()
        self._flush()

    def session_refused(self, epoch: int) -> None:
        self._dispatcher.session_refused(epoch, self._loop.time())
        self._takeovers.on_change()
        self._flush()

    async def _admit(
        self,
        message: inference_pb2.GenerateRequest,
        caller: Identity,
        time_left_s: float | None,
        default_max_tokens: int | None,
    ) -> Job:
        arrived = self._loop.time()
        with self.refusals.noting():
            if self._is_stopping:
                raise UnavailableError("the router is stopping")
        if not message.HasField("resume"):  # that was let in before
            with self.refusals.logging():
                self._dispatcher.check_room(
                    arrived,
                    model=message.model,
                    priority=message.priority,
                    tenant=caller.tenant,
                    left_s=time_left_s,
                )
        with self.refusals.noting():
            self._dispatcher.board.accounts.of(caller.tenant, arrived).check_priority(
                message.priority
            )
            job = await self._intake.make_job(
                message, arrived, time_left_s, caller, default_max_tokens=default_max_tokens
            )
        with self.refusals.logging():
            await self._claims.take(job)
        return job

    def _submit(self, job: Job, message: inference_pb2.GenerateRequest) -> Request:
        detokenizer, now = self._detokenizer(job), self._loop.time()
        try:
            if message.HasField("resume"):
                ids, n_bytes = message.resume.token_ids, message.resume.n_text_bytes
                return self._dispatcher.resume(job, detokenizer, ids, n_bytes, now)
            with self.refusals.logging():
                return self._dispatcher.submit(job, detokenizer, now)
        finally:
            self._claims.drop(job)
            self._flush()

    def _detokenizer(self, job: Job) -> Detokenizer | None:
        return self._text.detokenizer(job.token_ids) if self._text else None

    def _flush(self) -> None:
        """Act on what the dispatcher decides, once for all that comes in this turn of the loop."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flush_due = False
        began = self._loop.time()
        self._dispatcher.settle(began)
        for epoch, command in self._dispatcher.take_outbox():
            self._sessions.send(epoch, command)
        self._deliveries.tell(self._dispatcher.take_touched())
        self._deliveries.pressure.note(began, self._loop.time())

    async def _tick_forever(self) -> None:
        while True:
            self._dispatcher.tick(self._loop.time())
            self._sessions.close_gone(self._dispatcher.members)
            self._deliveries.end_unread(self._loop.time())
            self._flush()
            await asyncio.sleep(self.config.tick_s)
