"""Answers one HTTP call: each of its prompts is a separate request at the router.

    disconnect ─────────> cancels all ──┐
    router.open, one per prompt ────────┴──> events as they come, or one document

The status line is sent once every prompt is admitted and one has its first token: errors before
that have their own HTTP status. A later error is the stream's last event, in place of `[DONE]`. If
one prompt fails, the others are cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twolane.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    TwolaneError,
    UnknownSubmissionError,
)
from twolane.router.background import Background
from twolane.router.deliveries import Delivery
from twolane.router.doors.http.again import RESUME, Again, name_of
from twolane.router.doors.http.call_id import HEADER, answer_ids
from twolane.router.doors.http.choices.choice import Choice
from twolane.router.doors.http.chunk_writer import chunk_writer_of
from twolane.router.doors.http.errors import error_body
from twolane.router.doors.http.event_stream import EventStream
from twolane.router.doors.http.rate_limits import rate_limit_headers
from twolane.router.doors.http.reply import Reply, event
from twolane.router.doors.http.request import RequestBody
from twolane.router.requests.piece import Piece
from twolane.router.requests.trace_context import CALLED_BY, RESPONSE, TraceHeaders
from twolane.router.router import Router
from twolane.security.identity import Identity
from twolane.v1 import inference_pb2

T = TypeVar("T")


class _HungUpError(Exception):
    """The client has disconnected."""


class Answering:
    """An ASGI response. Raises `TwolaneError` only before it has begun to answer. If the client
    disconnects, the call ends at once, and its requests are cancelled."""

    def __init__(
        self,
        router: Router,
        asked: RequestBody,
        caller: Identity,
        again: Again,
        choice: Callable[[int], Choice],
    ) -> None:
        """`choice` makes the choice with that index."""
        self._router = router
        self._asked = asked
        self._caller = caller
        self._again = again
        self._choice = choice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: TwolaneError | None = None
        self._has_begun = False
        if self._router.traces.is_on:
            names = ((name.decode(), value.decode("latin-1")) for name, value in scope["headers"])
            CALLED_BY.set(TraceHeaders.of(names))
        try:
            async with Background() as tasks:
                tasks.start(_wait_hangup(receive), name="http-hangup")  # guard: hang-up
                with ExitStack() as stack:
                    await self._answer(stack, scope, receive, send)
        except* _HungUpError:
            pass
        except* TwolaneError as group:
            failed = _first_of(group)
        if failed is None:
            return
        if not self._has_begun:
            raise failed
        await send(_body(event(error_body(failed)), more=False))

    async def _answer(self, stack: ExitStack, scope: Scope, receive: Receive, send: Send) -> None:
        deliveries = await _all(self._open(at, each, stack) for at, each in self._messages())
        reply = self._reply(deliveries)
        if not self._asked.stream:
            document = reply.whole(await _all(_read(delivery) for delivery in deliveries))
            headers = self._headers(deliveries[0])
            whole = Response(document, media_type="application/json", headers=headers)
            await whole(scope, receive, send)
            return
        stream = EventStream(deliveries, reply, chunk_writer_of(scope))
        events = await stream.first()
        self._has_begun = True
        await send(self._head(deliveries[0]))
        if not reply.is_over:
            await send(_body(events, more=True))
            events = await stream.rest()
        await send(_body(events, more=False))

    def _reply(self, deliveries: Sequence[Delivery]) -> Reply:
        choices, resumed = [self._choice(at) for at in range(len(deliveries))], self._again.resumed
        place = (0, 0) if self._again.has_ids else None
        call_id = self._again.call_id
        if resumed is not None:
            place = resumed.n_tokens, resumed.n_text_bytes
            call_id = deliveries[0].request.job.request_id  # the events continue with the same id
            if any(place):
                choices[0].skip(deliveries[0].request.answer.tokens[: resumed.n_tokens])
        return Reply(
            choices,
            self._asked.usage,
            call_id=call_id,
            created=int(time.time()),
            model=deliveries[0].request.job.model,
            n_prompt=sum(delivery.request.n_prompt for delivery in deliveries),
            place=place,
        )

    def _headers(self, first: Delivery) -> dict[str, str]:
        """The headers of the answer, whose first choice is `first`."""
        quotas = self._router.quotas(self._caller.tenant)
        headers = {HEADER: self._again.call_id, **rate_limit_headers(quotas)}
        if (trace := first.request.job.trace) is not None:
            headers[RESPONSE] = trace.header
        return headers

    def _head(self, delivery: Delivery) -> dict[str, Any]:
        """The head of a stream of events. `delivery` is that of the first choice."""
        own = self._headers(delivery)
        if self._again.has_ids:
            own[RESUME] = name_of(delivery.first())
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *((name.encode(), value.encode()) for name, value in own.items()),
        ]
        return {"type": "http.response.start", "status": 200, "headers": headers}

    def _messages(self) -> Iterable[tuple[int, inference_pb2.GenerateRequest]]:
        """The requests to the router with their indexes, one for each choice."""
        messages = self._asked.messages_to_router()
        ids = answer_ids(self._again.label, len(messages))
        if self._again.has_ids and len(messages) > 1:
            text = f"{RESUME} is for calls with one prompt; this has {len(messages)}"
            raise InvalidRequestError(text, field=RESUME)
        for message, request_id in zip(messages, ids, strict=True):
            message.request_id = request_id
        return enumerate(messages)

    async def _open(
        self, at: int, message: inference_pb2.GenerateRequest, stack: ExitStack
    ) -> Delivery:
        with self._asked.naming_fields(at):
            return stack.enter_context(await self._find_or_open(message, self._again.token(at)))

    async def _find_or_open(
        self, message: inference_pb2.GenerateRequest, token: bytes | None
    ) -> Delivery:
        resumed = self._again.resumed
        if resumed is not None:
            return await self._go_on(resumed, message)
        if token is None:
            return await self._open_new(message)
        same = inference_pb2.ResumeRequest(request_id=message.request_id, resume_token=token)
        if self._again.looks_first:
            with suppress(UnknownSubmissionError):
                return await self._go_on(same, message)
        try:
            return await self._open_new(message, token)
        except DuplicateRequestError as error:
            if not self._again.looks_first:
                raise
            with suppress(UnknownSubmissionError):  # the same call may have started it meanwhile
                return await self._go_on(same, message)
            raise error from None

    async def _open_new(
        self, message: inference_pb2.GenerateRequest, token: bytes = b""
    ) -> Delivery:
        return await self._router.open(
            message,
            self._caller,
            time_left_s=self._asked.timeout_s,
            default_max_tokens=self._asked.default_max_tokens,
            resume_token=token,
            is_late=True,
            outlives_client=self._again.has_ids,
        )

    async def _go_on(
        self, wanted: inference_pb2.ResumeRequest, message: inference_pb2.GenerateRequest
    ) -> Delivery:
        delivery = await self._router.open_resumed(
            wanted,
            self._caller,
            time_left_s=self._asked.timeout_s,
            outlives_client=self._again.has_ids,
        )
        has_logprobs = delivery.request.job.params.top_logprobs is not None
        if message.sampling.HasField("top_logprobs") and not has_logprobs:
            delivery.close()
            raise InvalidRequestError("that answer has no log-probabilities", field="logprobs")
        return delivery


async def _read(delivery: Delivery) -> Piece:
    """Wait for the whole answer."""
    is_over = asyncio.Event()

    def on_news() -> None:
        if delivery.request.is_over:
            is_over.set()

    delivery.on_news = on_news
    on_news()
    await is_over.wait()
    piece = delivery.take()
    if delivery.error is not None:
        raise delivery.error
    assert piece is not None, "it has a ledger"
    return piece


def _body(events: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": events, "more_body": more}


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; if one fails, the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


def _first_of(error: BaseException) -> TwolaneError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TwolaneError)
    return error


async def _wait_hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _HungUpError
