"""One call on one HTTP connection: each of its prompts is a request of its own at the router.

    hang-up ────────────> cancels all ──┐
    router.open, one a prompt ──────────┴──> events as they come, or one document

The status line waits until every prompt is admitted and one has a first token: what fails before
has a status of its own. What fails later is the stream's last event, in place of `[DONE]`. A prompt
that fails ends the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twolane.errors import TwolaneError
from twolane.router.background import Background
from twolane.router.deliveries import Delivery
from twolane.router.doors.http.call_id import HEADER, answer_ids
from twolane.router.doors.http.choices.choice import Choice
from twolane.router.doors.http.chunk_writer import chunk_writer_of
from twolane.router.doors.http.errors import error_body
from twolane.router.doors.http.event_stream import EventStream
from twolane.router.doors.http.rate_limits import rate_limit_headers
from twolane.router.doors.http.reply import Reply, event
from twolane.router.doors.http.request import Request
from twolane.router.requests.piece import Piece
from twolane.router.router import Router
from twolane.security.identity import Identity
from twolane.v1 import inference_pb2

T = TypeVar("T")


class _HungUpError(Exception):
    """The client has gone."""


class Answering:
    """A response in ASGI's sense. Raises `TwolaneError` only before it has begun to answer. A
    client that hangs up ends it at any moment, and with it its requests at the workers."""

    def __init__(
        self,
        router: Router,
        asked: Request,
        caller: Identity,
        call_id: str,
        choice: Callable[[int], Choice],
    ) -> None:
        """`choice` makes the one of that index."""
        self._router = router
        self._asked = asked
        self._caller = caller
        self._call_id = call_id
        self._choice = choice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: TwolaneError | None = None
        self._has_begun = False
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
        reply = Reply(
            [self._choice(at) for at in range(len(deliveries))],
            self._asked.usage,
            call_id=self._call_id,
            created=int(time.time()),
            model=deliveries[0].request.job.model,
            n_prompt=sum(delivery.request.n_prompt for delivery in deliveries),
        )
        if not self._asked.stream:
            document = reply.whole(await _all(_read(delivery) for delivery in deliveries))
            whole = Response(document, media_type="application/json", headers=self._headers())
            await whole(scope, receive, send)
            return
        stream = EventStream(deliveries, reply, chunk_writer_of(scope))
        events = await stream.first()
        self._has_begun = True
        await send(self._head())
        if not reply.is_over:
            await send(_body(events, more=True))
            events = await stream.rest()
        await send(_body(events, more=False))

    def _headers(self) -> dict[str, str]:
        """Of an answer; to be asked when its requests have been admitted."""
        quotas = self._router.quotas(self._caller.tenant)
        return {HEADER: self._call_id, **rate_limit_headers(quotas)}

    def _head(self) -> dict[str, Any]:
        """Of a stream."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *((name.encode(), value.encode()) for name, value in self._headers().items()),
        ]
        return {"type": "http.response.start", "status": 200, "headers": headers}

    def _messages(self) -> Iterable[tuple[int, inference_pb2.GenerateRequest]]:
        """To the router, one for each answer that is wanted."""
        messages = self._asked.messages_to_router()
        ids = answer_ids(self._call_id, len(messages))
        for message, request_id in zip(messages, ids, strict=True):
            message.request_id = request_id
        return enumerate(messages)

    async def _open(
        self, at: int, message: inference_pb2.GenerateRequest, stack: ExitStack
    ) -> Delivery:
        with self._asked.naming_fields(at):
            delivery = await self._router.open(
                message,
                self._caller,
                time_left_s=self._asked.timeout_s,
                default_max_tokens=self._asked.default_max_tokens,
            )
        return stack.enter_context(delivery)


async def _read(delivery: Delivery) -> Piece:
    """The whole answer."""
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
    """The results of all; the first that fails ends the others."""
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
