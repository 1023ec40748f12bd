"""The console's paths at the HTTP door.

    /console               the page, and its files below: they have no data, and are open to all
    /console/api/look      what the page draws, each second
    /console/api/request   one request with its trace: ?id=
    /console/api/chat      as /v1/chat/completions, for operators

Nothing of a prompt or an answer is in what it shows, but in the chat's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from twolane.router.doors.admin.looks import Looks
from twolane.router.doors.http.app import Chat
from twolane.router.doors.http.caller import caller_of
from twolane.security.identity import Identity, Role
from twolane.v1 import admin_pb2

REQUESTS = 40
ENDED = 20
EVENTS = 40
FRESH_S = 0.4  # several browsers share an answer that is no older
_SCRIPTS = ("console.js", "chat.js", "dom.js", "scaler.js")
_ASSETS = {
    "/console": ("page.html", "text/html; charset=utf-8"),
    **{f"/console/{its}": (its, "text/javascript; charset=utf-8") for its in _SCRIPTS},
    "/console/console.css": ("console.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Console:
    """`looks` answers for all routers."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._latest: asyncio.Task[dict[str, Any]] | None = None
        self._asked_at = 0.0

    def routes(self, chat: Chat) -> list[BaseRoute]:
        """`chat` answers /v1/chat/completions."""

        async def chat_of_operator(request: Request) -> ASGIApp:
            request.state.identity = Identity(Role.CLIENT, str(caller_of(request)))
            return await chat(request)

        return [
            *(Route(path, _asset(*its)) for path, its in _ASSETS.items()),
            Route("/console/api/look", self._look),
            Route("/console/api/request", self._request),
            Route("/console/api/chat", chat_of_operator, methods=["POST"]),
        ]

    async def _look(self, request: Request) -> Response:
        caller = caller_of(request)
        now = asyncio.get_running_loop().time()
        if self._latest is None or now - self._asked_at > FRESH_S:
            self._asked_at = now
            self._latest = asyncio.create_task(self._all())
        seen = await asyncio.shield(self._latest)
        return _json({"who": str(caller), "role": caller.role.value, **seen})

    async def _all(self) -> dict[str, Any]:
        running = admin_pb2.ListRequestsRequest(page_size=REQUESTS, with_ledgers=True)
        ended = admin_pb2.ListRequestsRequest(page_size=ENDED, with_ledgers=True, ended=True)
        found = await asyncio.gather(
            self._looks.status(with_requests=False),
            self._looks.requests(running),
            self._looks.requests(ended),
            self._looks.events(admin_pb2.ListEventsRequest(page_size=EVENTS)),
        )
        names = ("status", "running", "ended", "events")
        return dict(zip(names, map(_plain, found), strict=True))

    async def _request(self, request: Request) -> Response:
        name = request.query_params.get("id", "")
        found = await self._looks.find(admin_pb2.GetRequestRequest(id=name))
        return _json(_plain(found), 200 if found.HasField("trace") else 404)


def _asset(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    body = (files("twolane.router.doors.console") / "assets" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)

    return answer


def _plain(message: Message) -> dict[str, Any]:
    """Fields by their names in proto/; those that are 0 or empty are left out."""
    fields: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return fields


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status, media_type="application/json", headers=HEADERS)
