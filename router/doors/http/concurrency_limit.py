"""At most so many requests at once: more are refused, in a way that clients retry."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twolane.router.doors.http.errors import too_many_requests


class ConcurrencyLimit:
    """Around an ASGI application. A request counts from its last byte until the last one of its
    answer, or until its client has gone; a connection that waits for its next one does not."""

    def __init__(self, app: ASGIApp, most: int, retry_after_s: float) -> None:
        self._app = app
        self._most = most
        self._retry_after_s = retry_after_s
        self._running: set[object] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._running) >= self._most:
            message = f"{self._most} requests run here already"
            await too_many_requests(message, self._retry_after_s)(scope, receive, send)
            return
        request = object()
        self._running.add(request)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._running.discard(request)
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._running.discard(request)
