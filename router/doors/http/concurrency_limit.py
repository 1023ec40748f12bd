"""Bounds concurrent requests: more are refused, with a status that clients retry. A tenant that has
few running requests may exceed the bound, so that other tenants cannot lock it out; admission then
decides which request is evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twolane.router.doors.http.errors import too_many_requests

FEW_OF = 16  # a tenant has few if it has less than 1/16 of the bound


class ConcurrencyLimit:
    """Wraps an ASGI application. A request counts from its last byte until the last byte of its
    answer, or until its client disconnects; idle connections do not count."""

    def __init__(
        self,
        app: ASGIApp,
        most: int,
        retry_after_s: float,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """`count` is called for each that is refused."""
        self._app = app
        self._most = most
        self._retry_after_s = retry_after_s
        self._count = count
        self._running: dict[object, str] = {}  # the tenant of each
        self._n_of: Counter[str] = Counter()  # running requests by tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = scope.get("state", {}).get("identity")
        tenant = "" if identity is None else identity.tenant
        if not self._has_room(tenant):
            self._count()
            message = f"{self._most} requests are running here already"
            refusal = too_many_requests(Request(scope), message, self._retry_after_s)
            await refusal(scope, receive, send)
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
