"""One call on one HTTP connection: each of its prompts is a request of its own at the router.

    hang-up ────────────> cancels all ──┐
    router.generate, one a prompt ──────┴──> events as they come, or one document

The status line waits until every prompt is admitted and one has a first token: what fails before
has a status of its own. What fails later is the stream's last event, in place of `[DONE]`. A prompt
that fails ends the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twolane.errors import TwolaneError
from twolane.router.background import Background
from twolane.router.doors.http.call_id import HEADER, answer_ids
from twolane.router.doors.http.choice import Choice
from twolane.router.doors.http.errors import error_body
from twolane.router.doors.http.rate_limits import rate_limit_headers
from twolane.router.doors.http.reply import Reply, event
from twolane.router.doors.http.request import Request
from twolane.router.router import Router
from twolane.security.identity import Identity
from twolane.v1 import inference_pb2

Answer = AsyncGenerator[inference_pb2.GenerateResponse, None]
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
        stream = _EventStream(send, self._headers)
        failed: TwolaneError | None = None
        try:
            async with Background() as tasks, AsyncExitStack() as answers:
                tasks.start(_wait_hangup(receive), name="http-hangup")  # guard: hang-up
                whole = await self._answer(answers, stream)
                if whole is not None:
                    await whole(scope, receive, send)
        except* _HungUpError:
            pass
        except* TwolaneError as group:
            failed = _first_of(group)
        if failed is None:
            return
        if not stream.has_begun:
            raise failed
        await stream.send(event(error_body(failed)), more=False)

    async def _answer(self, stack: AsyncExitStack, stream: _EventStream) -> Response | None:
        """The whole answer, or None if all of it has gone into `stream`."""
        answers = [await stack.enter_async_context(answer) for answer in self._answers()]
        firsts = await _all(self._first(at, answer) for at, answer in enumerate(answers))
        reply = Reply(
            [self._choice(at) for at in range(len(answers))],
            firsts,
            self._asked.usage,
            call_id=self._call_id,
            created=int(time.time()),
        )
        if self._asked.stream:
            await _all(_stream(at, answer, reply, stream) for at, answer in enumerate(answers))
            return None
        document = reply.whole(await _all(_read(answer) for answer in answers))
        return Response(document, media_type="application/json", headers=self._headers())

    def _headers(self) -> dict[str, str]:
        """Of an answer; to be asked when its requests have been admitted."""
        quotas = self._router.quotas(self._caller.tenant)
        return {HEADER: self._call_id, **rate_limit_headers(quotas)}

    def _answers(self) -> Iterable[aclosing[Answer]]:
        messages = self._asked.messages_to_router()
        ids = answer_ids(self._call_id, len(messages))
        for message, request_id in zip(messages, ids, strict=True):
            message.request_id = request_id
            answer = self._router.generate(
                message,
                self._caller,
                time_left_s=self._asked.timeout_s,
                default_max_tokens=self._asked.default_max_tokens,
            )
            yield aclosing(answer)

    async def _first(self, at: int, answer: Answer) -> inference_pb2.GenerateResponse:
        with self._asked.naming_fields(at):
            return await anext(answer)


class _EventStream:
    """Server-sent events on one connection, for several writers. The head goes with the first."""

    def __init__(self, send: Send, headers: Callable[[], dict[str, str]]) -> None:
        self.has_begun = False
        self._send = send
        self._turn = asyncio.Lock()
        self._headers = headers

    async def send(self, events: bytes, *, more: bool = True) -> None:
        async with self._turn:
            if not self.has_begun:
                self.has_begun = True
                headers = [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    *((name.encode(), value.encode()) for name, value in self._headers().items()),
                ]
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._send(start)
            await self._send({"type": "http.response.body", "body": events, "more_body": more})


async def _stream(at: int, answer: Answer, reply: Reply, stream: _EventStream) -> None:
    async for response in answer:
        events = reply.events(at, response)
        if events:
            await stream.send(events, more=not reply.is_over)


async def _read(answer: Answer) -> list[inference_pb2.GenerateResponse]:
    return [response async for response in answer]


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
