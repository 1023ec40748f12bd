"""At most so many requests at once: more are refused, in a way that clients retry."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from router.http.errors import crowded


class Crowd:
    """Around an ASGI application. A request counts from its head until its answer is over, or its
    client has gone; a connection that waits for its next one does not."""

    def __init__(self, app: ASGIApp, most: int, retry_after_s: float) -> None:
        self._app = app
        self._most = most
        self._retry_after_s = retry_after_s
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._running >= self._most:
            message = f"{self._most} requests run here already"
            await crowded(message, self._retry_after_s)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
