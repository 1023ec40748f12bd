"""One answer from any number of routers: if its router is lost or says `moved`, another continues.

    Generate ──> messages … lost ──> next router: Resume{takeover k, received} ──> messages …
                              ▲            │ lost again: the next one, after a pause
                              ├────────────┤ ALREADY_EXISTS: again, until what was lost is freed
                              └────────────┤ ABORTED: once more, with k + 1
                                           └ NOT_FOUND: Generate{resume: received}

Tokens carry their index: one that was received before is dropped, after a check that it is the
same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import grpc

from twolane.calls.door import Doors
from twolane.calls.multiplexed import Call, Messages
from twolane.calls.trace_headers import trace_headers
from twolane.errors import InternalError, UnavailableError
from twolane.rpc.errors import from_rpc_error, is_of_router
from twolane.v1 import inference_pb2

LOST_S = 30.0  # how long an answer may be without a router
RESTART_S = 10.0  # the same, where only one is known, which may be started again
FRESH_S = 5.0  # the same, while it is not known whether other routers share the port
TELL_S = 1.5  # after which it is logged that no router answers
_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0
_LEAST_S = 0.001  # left of a call's time: with 0 it would have no bound
_Code = grpc.StatusCode


class ResumingCall:
    """As `MultiplexedCall`. Raises `InternalError` if a router sends a different token for an index
    that was received before."""

    def __init__(
        self, doors: Doors, request: inference_pb2.GenerateRequest, timeout_s: float | None
    ) -> None:
        self._doors = doors
        self._request = request
        request.resumes = True  # tells the router that we understand `moved`
        self._loop = asyncio.get_running_loop()
        self._due = None if timeout_s is None else self._loop.time() + timeout_s
        self._door = doors.next()
        self._is_cancelled = False
        self._trace = trace_headers()
        self._call: Call = self._start(request)
        self._messages: Messages = aiter(self._call)
        self._first: inference_pb2.GenerateResponse | None = None
        self._token_ids: list[int] = []
        self._n_text_bytes = 0
        self.takeovers = 0
        self._is_answered = False  # whether the current call has brought a message
        self._may_have_begun = False  # whether a router that was lost may have begun the request
        # These three until something new has arrived.
        self._lost_at: float | None = None  # when it was lost
        self._n_tries = 0  # since then
        self._held: grpc.aio.AioRpcError | None = None  # what said last that its label is in use
        self._has_moved = False
        self._is_finished = False

    def __aiter__(self) -> AsyncIterator[inference_pb2.GenerateResponse]:
        return self

    async def __anext__(self) -> inference_pb2.GenerateResponse:
        while True:
            if self._has_moved:
                self._has_moved = False
                await self._go_on(None)
            try:
                message = await anext(self._messages)
            except grpc.aio.AioRpcError as error:
                if self._is_of_an_old_router(error):
                    self._request.resumes = False
                    self._listen(self._start(self._request))
                    continue
                is_over = not (is_lost(error, self._is_answered) or self._is_held(error))
                if self._is_finished or is_over:
                    raise
                await self._go_on(error)
                continue
            self._is_answered = True
            if self._take(message):
                return message

    def cancel(self) -> bool:
        self._is_cancelled = True
        return bool(self._call.cancel())

    def done(self) -> bool:
        return self._call.done()

    async def details(self) -> str | None:
        return await self._call.details()

    def _take(self, message: inference_pb2.GenerateResponse) -> bool:
        """Remove the tokens received before from `message`. Returns whether anything new is
        left."""
        is_first = self._first is None and bool(message.request_id)
        if is_first:
            self._first = message
        self._doors.learn(message.routers)
        n_known = 0
        for token in message.tokens:
            if token.index < len(self._token_ids):
                self._check_known(token)
                n_known += 1
            else:
                self._token_ids.append(token.token_id)
        del message.tokens[:n_known]
        self._n_text_bytes += len(message.text.encode())
        self._has_moved = message.moved
        self._is_finished = bool(message.finish_reason)
        is_news = bool(message.tokens or message.text or message.finish_reason)
        if is_news:
            if self._lost_at is not None:
                self._doors.tell_found()
            self._lost_at, self._n_tries, self._held = None, 0, None
        return is_first or is_news

    def _check_known(self, token: inference_pb2.Token) -> None:
        known = self._token_ids[token.index]
        if token.token_id != known:
            raise InternalError(
                f"after a change of router, token {token.index} of the answer is {token.token_id}; "
                f"it was {known}",
                metadata={"index": str(token.index), "takeovers": str(self.takeovers)},
            )

    @property
    def _is_fresh(self) -> bool:
        """Whether no router has said whether others share the one port that is known."""
        return self._doors.are_unknown

    def _is_of_an_old_router(self, error: grpc.aio.AioRpcError) -> bool:
        """Whether the router refuses the request because of an unknown field, which may be
        `resumes`."""
        is_refused = error.code() is _Code.UNIMPLEMENTED
        return is_refused and self._first is None and self._request.resumes

    def _is_held(self, error: grpc.aio.AioRpcError) -> bool:
        """Whether what the lost router had begun of this request may still hold its label: until
        the router's lease ends in the store, or the row at a worker."""
        return error.code() is _Code.ALREADY_EXISTS and self._may_have_begun

    async def _go_on(self, error: grpc.aio.AioRpcError | None) -> None:
        """Continue at another router. If none can in time, raises what said that the label is in
        use, or else `error` or the last error since."""
        search_s = LOST_S
        if error is None:
            self._may_have_begun = True
        elif self._is_held(error):
            self._held = error
        else:
            self._may_have_begun |= not (_is_refused(error) or is_unheard(error))
            self._doors.note_lost(self._door)
            self._learn(error)
            search_s = await self._search_s(error)
            if not search_s:
                raise error
        self._lost_at = self._lost_at or self._loop.time()
        until = self._lost_at + (search_s if self._held is None else LOST_S)
        if self._due is not None:
            until = min(until, self._due)
        if self._held is not None:  # there is a router
            await self._find(error, until)
            return
        telling = self._loop.call_at(self._lost_at + TELL_S, self._doors.tell_lost, until)
        try:
            await self._find(error, until)
        finally:
            telling.cancel()

    async def _search_s(self, error: grpc.aio.AioRpcError) -> float:
        """How long to look for a router after `error`; 0: not at all. An answer that was cut off
        may find the one that is started in the place of the only one."""
        is_cut_off = self._first is not None and not is_of_router(error)
        if self._is_fresh and not _is_refused(error):
            return RESTART_S if is_cut_off else FRESH_S
        if await self._may_go_on():
            return FRESH_S if self._is_fresh else LOST_S
        return RESTART_S if is_cut_off else 0.0

    async def _may_go_on(self) -> bool:
        """As `Doors.may_go_on`. A name that is not resolved in the call's time, or within
        `FRESH_S`, leads to no other router."""
        left_s = self._left_s()
        try:
            async with asyncio.timeout(FRESH_S if left_s is None else min(left_s, FRESH_S)):
                return await self._doors.may_go_on()
        except TimeoutError:
            return False

    async def _find(self, error: grpc.aio.AioRpcError | None, until: float) -> None:
        """Ask one door after the other until one continues. Raises as `_go_on`."""
        while True:
            pause_s = min(_PAUSE_S * self._n_tries, _MAX_PAUSE_S) * random.uniform(0.5, 1.5)
            self._n_tries += 1
            if error is not None and self._loop.time() + pause_s >= until:
                raise self._held or error
            await asyncio.sleep(pause_s)
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._door = self._doors.next()
            try:
                await self._ask()
                return
            except grpc.aio.AioRpcError as failed:
                if failed.code() is _Code.UNIMPLEMENTED and error is not None:
                    raise error from None  # an old router cannot resume the answer
                if not is_lost(failed) and failed.code() is not _Code.ABORTED:
                    raise
                if is_lost(failed):
                    self._doors.note_lost(self._door)
                    self._learn(failed)
                error = failed
                if self._first is None and self._is_fresh and _is_refused(error):
                    raise

    def _learn(self, error: grpc.aio.AioRpcError) -> None:
        """A router that stops names all that it knows with its refusal."""
        if named := from_rpc_error(error).metadata.get("routers"):
            self._doors.learn(named.split(","))

    async def _ask(self) -> None:
        """Ask the current door to continue, and wait for its first message."""
        door, first = self._door, self._first
        if first is None:
            self._listen(self._start(self._request))
            return
        self.takeovers += 1
        resume = inference_pb2.ResumeRequest(
            submission_id=first.submission_id,
            resume_token=first.resume_token,
            takeover=self.takeovers,
            n_tokens=len(self._token_ids),
            n_text_bytes=self._n_text_bytes,
        )
        metadata = (*(door.target.metadata or ()), *self._trace)
        call = door.inference.Resume(resume, timeout=self._left_s(), metadata=metadata)
        self._call = call  # so that `cancel` finds it
        try:
            self._take(await anext(aiter(call)))
        except grpc.aio.AioRpcError as error:
            if error.code() is not _Code.NOT_FOUND:
                raise
            self._listen(self._start(self._again(first)))
            return
        self._listen(call)
        self._is_answered = True

    def _again(self, first: inference_pb2.GenerateResponse) -> inference_pb2.GenerateRequest:
        """A new request that continues the answer from what was received; no worker has its
        rows."""
        request = inference_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.request_id, request.sampling.seed = first.request_id, first.seed
        request.resume.submission_id = first.submission_id
        request.resume.resume_token = first.resume_token
        request.resume.takeover = self.takeovers
        request.resume.token_ids.extend(self._token_ids)
        request.resume.n_text_bytes = self._n_text_bytes
        return request

    def _start(self, request: inference_pb2.GenerateRequest) -> Call:
        if self._is_cancelled:
            raise asyncio.CancelledError
        return self._door.multiplexer.start(request, self._left_s(), self._trace)

    def _listen(self, call: Call) -> None:
        self._call, self._messages, self._is_answered = call, aiter(call), False

    def _left_s(self) -> float | None:
        return None if self._due is None else max(_LEAST_S, self._due - self._loop.time())


def is_lost(error: grpc.aio.AioRpcError, is_answered: bool = False) -> bool:
    """Whether the router, or the connection to it, was lost, so that another may answer.
    `is_answered`: whether the call has brought a message, so that a handler has seen it."""
    code = error.code()
    is_reset = code is _Code.INTERNAL and "RST_STREAM" in (error.details() or "")
    if code is _Code.CANCELLED:  # without a reason: no handler has seen the call
        return not is_answered and isinstance(from_rpc_error(error), UnavailableError)
    return code is _Code.UNAVAILABLE or is_reset


def is_unheard(error: grpc.aio.AioRpcError) -> bool:
    """Whether a connection was taken, and nothing came: its router hangs. The next connection to
    the port may lead to another one that shares it."""
    return "before receiving SETTINGS" in (error.details() or "")


def _is_refused(error: grpc.aio.AioRpcError) -> bool:
    """Whether none of its addresses had a listener: one that is lost resets connections."""
    why = error.details() or ""
    return "ailed to connect" in why and "reset" not in why and not is_unheard(error)
