"""One answer of the router on one HTTP connection.

    hang-up ──> cancels ──┐
    router.generate ──────┴──> events as they come, or one document

The status line waits for the answer's first token: what fails before has a status of its own. What
fails later is the stream's last event, in place of `[DONE]`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.background import Background
from router.http.completion import Completion, event
from router.http.errors import error_body
from router.http.request import CompletionRequest, to_message
from router.router import Router
from twolane.errors import TwolaneError
from twolane.v1 import inference_pb2

Answer = AsyncGenerator[inference_pb2.GenerateResponse, None]
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class _HungUpError(Exception):
    """The client has gone."""


class Answering:
    """A response in ASGI's sense. Raises `TwolaneError` only before it has begun to answer. A
    client that hangs up ends it at any moment, and with it the request at both workers."""

    def __init__(self, router: Router, asked: CompletionRequest) -> None:
        self._router = router
        self._asked = asked
        self._message = to_message(asked)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        time_left_s = self._asked.timeout_s
        try:
            async with (
                Background() as tasks,
                aclosing(self._router.generate(self._message, time_left_s=time_left_s)) as answer,
            ):
                tasks.start(_wait_hangup(receive), name="http-hangup")  # guard: hang-up
                completion, request_id = await self._begin(answer)
                headers = [(b"x-request-id", request_id.encode())]
                if self._asked.stream:
                    await _stream(completion, answer, send, headers)
                else:
                    whole = completion.whole([response async for response in answer])
                    response = Response(whole, media_type="application/json")
                    response.raw_headers += headers
                    await response(scope, receive, send)
        except* _HungUpError:
            pass

    async def _begin(self, answer: Answer) -> tuple[Completion, str]:
        first = await anext(answer)
        created, token_bytes = int(time.time()), self._router.token_bytes
        return Completion(self._asked, first, created, token_bytes), first.request_id


async def _stream(
    completion: Completion, answer: Answer, send: Send, headers: list[tuple[bytes, bytes]]
) -> None:
    has_begun = False
    try:
        async for response in answer:
            events = completion.events(response)
            if not events:
                continue
            if not has_begun:
                has_begun = True
                headers = [*_STREAM_HEADERS, *headers]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            more = not response.finish_reason
            await send({"type": "http.response.body", "body": events, "more_body": more})
    except TwolaneError as error:
        if not has_begun:
            raise
        await send({"type": "http.response.body", "body": event(error_body(error))})


async def _wait_hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _HungUpError
