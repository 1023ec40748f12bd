"""The router's core: the dispatcher with a clock, sessions to workers, and answers to clients.

Everything runs on one event loop; this module does not use gRPC. Each input (a client's request, a
worker's message, a tick) goes to the dispatcher; then the router sends its commands and wakes the
clients with news.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType

from twolane.errors import (
    CancelledError,
    TwolaneError,
    UnavailableError,
)
from twolane.router.background import Background
from twolane.router.claims import Claims
from twolane.router.config import RouterConfig
from twolane.router.deliveries import Deliveries, Delivery
from twolane.router.dispatch.board import DispatchObserver
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.intake import Intake, deadline_of
from twolane.router.known_routers import KnownRouters
from twolane.router.limits import check_answer_so_far, check_resume
from twolane.router.members import own_pause
from twolane.router.members.model import ModelFacts
from twolane.router.members.session import WorkerDialer
from twolane.router.members.worker_sessions import WorkerSessions
from twolane.router.operations import Operations
from twolane.router.refusal_log import RefusalLog
from twolane.router.requests.request import Job, Label, Request
from twolane.router.requests.traces import NO_TRACES, Traces
from twolane.router.status import make_service_status
from twolane.router.store import Store
from twolane.router.takeovers import Takeovers
from twolane.router.tenants.accounts import Level, no_limits
from twolane.router.text.codec import TextCodec
from twolane.router.text.detokenizer import Detokenizer
from twolane.rpc.measured_loop import MeasuredLoop
from twolane.security.identity import ANONYMOUS, Identity
from twolane.security.keys import TenantLimits
from twolane.v1 import cluster_pb2, inference_pb2, worker_pb2

log = logging.getLogger(__name__)
LAST_WORDS_S = 0.1
KEPT_S = 10.0  # how long workers continue an answer for a client that may come back


class Router:
    """Use as an async context manager. Leaving it ends every answer with `UnavailableError`.

    Without `text` it serves only token ids. The limits that `limits_of` returns for a tenant may
    change at any time.
    """

    def __init__(
        self,
        config: RouterConfig,
        dialer: WorkerDialer,
        text: TextCodec | None = None,
        *,
        observer: DispatchObserver | None = None,
        limits_of: Callable[[str], TenantLimits] = no_limits,
        store: Store | None = None,
        traces: Traces = NO_TRACES,
    ) -> None:
        self.config = config
        self._text = text
        # The bytes that a token adds to a text; without a tokenizer its id in vLLM's form.
        self.token_bytes = text.token_bytes if text else b"token_id:%d".__mod__
        self.traces = traces
        self._dispatcher = Dispatcher(config, observer, limits_of, store)
        self._dispatcher.board.ended.on_add = lambda record: self.traces.over(record)
        self._claims = Claims(self._dispatcher.board)
        self.refusals = RefusalLog(self._dispatcher.board.counters)
        self._intake = Intake(self._dispatcher.board, text)
        epoch = config.epoch or secrets.randbits(63) + 1  # of this process, among all with that id
        # Its doors are added when they are open.
        self.address = worker_pb2.RouterAddress(router_id=config.router_id, router_epoch=epoch)
        self.known = KnownRouters(self.address, self._dispatcher.board.store)
        self._deliveries = Deliveries(config.readers, self._end, self._keep_rows, self.known)
        self._tasks = Background()
        self._sessions = WorkerSessions(self.address, config.membership, dialer, self, self._tasks)
        self._takeovers = Takeovers(
            config, self._dispatcher.members, self._sessions.send, self._dispatcher.board.store
        )
        self._is_stopping = False
        self._is_flush_due = False

    async def __aenter__(self) -> Router:
        self._loop = asyncio.get_running_loop()
        self.operations = Operations(self._dispatcher, self._loop.time, self._flush)
        announced_s = 2 * self.config.membership.announce_interval_s
        self.known.settled_at = self._takeovers.settled_at = self._loop.time() + announced_s
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
                await asyncio.sleep(LAST_WORDS_S)  # closing a link drops unsent messages
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
        """Generate one answer. The first response has the ids, the seed, the model and the prompt's
        length, and is sent as soon as the request is admitted; each later one has everything that
        waited; the last one has finish_reason and ledger. `default_max_tokens` applies if the
        message sets no max_tokens, as far as it fits; None: as many as fit.

        If the request fails, raises a `TwolaneError` instead of the rest. Closing the iterator
        early (or cancelling its task) cancels the request at both workers.
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
        resume_token: bytes = b"",
        outlives_client: bool = False,
        is_late: bool = False,
        pair: tuple[int, int] | None = None,
    ) -> Delivery:
        """Admit a request; for arguments and errors see `generate`. The caller must close the
        delivery. An empty `resume_token` is drawn at random; see `Delivery` for
        `outlives_client`. `is_late`: the client cannot be sent elsewhere, so it is still admitted
        while a router that stops leaves the port to others. `pair`: see `Job`."""
        if message.HasField("resume"):
            check_answer_so_far(message.resume)
            self._dispatcher.let_go(message.resume, caller.tenant, self._loop.time())
        self._check_open(is_late=is_late)
        job = await self._admit(message, caller, time_left_s, default_max_tokens, resume_token)
        job = job if pair is None else replace(job, pair=pair)
        request = self._submit(self.traces.traced(job), message)
        return self._deliveries.add(
            request, resumes=message.resumes, outlives_client=outlives_client
        )

    async def open_resumed(
        self,
        message: inference_pb2.ResumeRequest,
        caller: Identity = ANONYMOUS,
        *,
        time_left_s: float | None = None,
        resumes: bool = False,
        outlives_client: bool = False,
    ) -> Delivery:
        """Continue an answer that another router has begun. The caller must close the delivery; see
        `Delivery` for `resumes` and `outlives_client`. Raises `UnknownSubmissionError` if workers
        have too little of it, and `TakenOverError`."""
        check_resume(message, caller)
        self._check_open()
        self._dispatcher.let_go(message, caller.tenant, self._loop.time())
        deadline = deadline_of(self._loop.time(), time_left_s)
        job, known = await self._takeovers.take(message, caller, deadline)
        self._intake.check_ended()
        text, now = self._detokenizer(job), self._loop.time()
        n_tokens, n_text_bytes = message.n_tokens, message.n_text_bytes
        job = self.traces.traced(job)
        request = self._dispatcher.adopt(job, known, text, n_tokens, n_text_bytes, now)
        self._flush()
        return self._deliveries.add(request, resumes=resumes, outlives_client=outlives_client)

    def check_room(
        self,
        caller: Identity = ANONYMOUS,
        *,
        priority: int | None = None,
        time_left_s: float | None = None,
    ) -> None:
        """Called by doors before they parse a message: raises `OverloadedError` or `DeadlineError`
        if any request would be refused now. `priority` is None if not known yet."""
        highest = self.config.limits.priority
        priority = highest if priority is None else priority
        now, left_s = self._loop.time(), time_left_s
        with self.refusals.logging():
            self._dispatcher.check_room(now, priority=priority, tenant=caller.tenant, left_s=left_s)

    def cancel(self, request_id: str, *, tenant: str = "") -> bool:
        """Cancel the running request with that label. False if there is none."""
        submission_id = self._dispatcher.board.labels.get(Label(tenant, request_id))
        return submission_id is not None and self._end_cancelled(submission_id, request_id)

    def cancel_submission(self, submission_id: str, *, tenant: str = "") -> bool:
        """Cancel a request by the submission id that the router has drawn. False if there is none,
        or if it is another tenant's."""
        request = self._dispatcher.board.find(submission_id, tenant)
        return request is not None and self._end_cancelled(submission_id, submission_id)

    def _end_cancelled(self, submission_id: str, name: str) -> bool:
        return self._end(submission_id, CancelledError(f"request {name} was cancelled by its id"))

    def _end(self, submission_id: str, error: TwolaneError) -> bool:
        found = self._dispatcher.end(submission_id, error, self._loop.time())
        self._flush()
        return found

    def _keep_rows(self, request: Request) -> None:
        self._dispatcher.abandon(request, self._loop.time(), KEPT_S)
        self._flush()

    def quotas(self, tenant: str) -> list[Level]:
        """The state of the tenant's quotas."""
        now = self._loop.time()
        return list(self._dispatcher.board.accounts.of(tenant, now).levels(now))

    def models(self) -> list[ModelFacts]:
        return list(self._dispatcher.members.models())

    def can_serve(self) -> bool:
        """Whether requests are accepted, and some model has a live pair of workers or gets one."""
        board = self._dispatcher.board
        return not self._is_stopping and (bool(board.members.servable_models()) or board.wakes())

    def service_status(
        self, submission_ids: Iterable[str], *, tenant: str = ""
    ) -> inference_pb2.GetStatusResponse:
        """The status for clients, with the state of these submissions; those of other tenants count
        as unknown."""
        board, now = self._dispatcher.board, self._loop.time()
        found = [board.find(each, tenant) for each in submission_ids]
        return make_service_status(board, found, serving=self.can_serve(), now=now)

    # Workers

    def announce(self, announce: cluster_pb2.AnnounceRequest) -> cluster_pb2.AnnounceResponse:
        """Handle a worker's announce. The router opens the session to a new worker."""
        if self._dispatcher.announce(announce, self._loop.time()):
            self._sessions.open(announce.worker)
        self._flush()
        return cluster_pb2.AnnounceResponse(
            interval_ms=int(self.config.membership.announce_interval_s * 1000),
            routers=self.known.hear(announce.routers, self._loop.time()),
        )

    async def hand_over(self, within_s: float) -> None:
        """Before a stop, tell clients that support it to continue at another router, and wait for
        that."""
        self.stop_accepting()
        await self._deliveries.hand_over(within_s)

    def status(self, *, with_requests: bool = True) -> cluster_pb2.GetClusterStatusResponse:
        return self.operations.status(with_requests=with_requests)

    def check_integrity(self) -> None:
        """Raise AssertionError if the router's tables are inconsistent."""
        self._dispatcher.board.check_integrity()

    def stop_accepting(self) -> None:
        """Refuse new requests with `UnavailableError`; running ones continue."""
        self._is_stopping = True

    def end_answers(self) -> None:
        """End requests with `UnavailableError`, admitted or not. May be called again."""
        self._intake.has_ended = True
        now = self._loop.time()
        for request in self._deliveries.moved():  # workers keep their rows for the grace period
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
        self._flush()

    def session_broken(self, epoch: int) -> None:
        self._dispatcher.session_broken(epoch, self._loop.time())
        self._takeovers.on_change()
        self._flush()

    def session_refused(self, epoch: int) -> None:
        self._dispatcher.session_refused(epoch, self._loop.time())
        self._takeovers.on_change()
        self._flush()

    def _check_open(self, *, is_late: bool = False) -> None:
        has_others = len(self.known.client_doors()) > 1
        with self.refusals.noting():
            if self._intake.has_ended or (self._is_stopping and not (is_late and has_others)):
                metadata = self.known.as_metadata() if has_others else None
                raise UnavailableError("the router is stopping", metadata=metadata)

    async def _admit(
        self,
        message: inference_pb2.GenerateRequest,
        caller: Identity,
        time_left_s: float | None,
        default_max_tokens: int | None,
        resume_token: bytes,
    ) -> Job:
        arrived = self._loop.time()
        if not message.HasField("resume"):  # a resumed request was admitted before
            with self.refusals.logging():
                self._dispatcher.check_room(
                    arrived,
                    model=message.model,
                    priority=message.priority,
                    tenant=caller.tenant,
                    left_s=time_left_s,
                    max_tokens=message.sampling.max_tokens,
                )
        with self.refusals.noting():
            self._dispatcher.board.accounts.of(caller.tenant, arrived).check_priority(
                message.priority
            )
            job = await self._intake.make_job(
                message, arrived, time_left_s, caller, default_max_tokens=default_max_tokens
            )
            if resume_token:
                job = replace(job, resume_token=resume_token)
        with self.refusals.logging():
            await self._claims.take(job)
        return job

    def _submit(self, job: Job, message: inference_pb2.GenerateRequest) -> Request:
        detokenizer, now = self._detokenizer(job), self._loop.time()
        try:
            with self.refusals.noting():
                self._intake.check_ended()
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
        """Act on the dispatcher's decisions, once for all inputs of this turn of the event loop."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flush_due = False
        now = self._loop.time()
        self._dispatcher.settle(now)
        for epoch, command in self._dispatcher.take_outbox():
            self._sessions.send(epoch, command)
        self._deliveries.tell(self._dispatcher.take_news())
        if isinstance(self._loop, MeasuredLoop):
            self._deliveries.pressure.note(now, self._loop.idle_s)

    async def _tick_forever(self) -> None:
        late_s = 0.0
        while True:
            self._dispatcher.tick(self._loop.time(), late_s)
            self._sessions.close_gone(self._dispatcher.members)
            self._deliveries.end_unread(self._loop.time(), late_s)
            self._flush()
            late_s = await own_pause.sleep(self.config.tick_s)
