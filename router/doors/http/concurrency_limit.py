"""At most so many requests at once: more are refused, in a way that clients retry. A tenant that
has few of them is let in beyond that, so that no other tenant shuts it out: who gives its place to
whom is for admission to say."""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twolane.router.doors.http.errors import too_many_requests

FEW_OF = 16  # a tenant with less than this part of all has few


class ConcurrencyLimit:
    """Around an ASGI application. A request counts from its last byte until the last one of its
    answer, or until its client has gone; a connection that waits for its next one does not."""

    def __init__(self, app: ASGIApp, most: int, retry_after_s: float) -> None:
        self._app = app
        self._most = most
        self._retry_after_s = retry_after_s
        self._running: dict[object, str] = {}  # whose it is
        self._n_of: Counter[str] = Counter()  # by tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = scope.get("state", {}).get("identity")
        tenant = "" if identity is None else identity.tenant
        if not self._has_room(tenant):
            message = f"{self._most} requests run here already"
            await too_many_requests(message, self._retry_after_s)(scope, receive, send)
            return
        request = object()
        self._running[request] = tenant
        self._n_of[tenant] += 1

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._end(request)
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._end(request)

    def _has_room(self, tenant: str) -> bool:
        n = len(self._running)
        has_few = self._n_of.get(tenant, 0) < self._most // FEW_OF
        return n < self._most or (has_few and n < 2 * self._most)

    def _end(self, request: object) -> None:
        """May be called twice."""
        tenant = self._running.pop(request, None)
        if tenant is not None:
            self._n_of[tenant] -= 1
            if not self._n_of[tenant]:
                del self._n_of[tenant]
