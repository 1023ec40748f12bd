"""The HTTP door as an ASGI application: completions, chat, models, health."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from twolane.errors import TwolaneError, UnknownModelError
from twolane.router.config import HttpConfig
from twolane.router.doors.http.again import take_again
from twolane.router.doors.http.answering import Answering
from twolane.router.doors.http.call_id import call_id_header
from twolane.router.doors.http.caller import caller_of
from twolane.router.doors.http.chat_request import parse_chat
from twolane.router.doors.http.choices.chat import ChatMessage
from twolane.router.doors.http.choices.choice import Choice
from twolane.router.doors.http.choices.completion import Completion
from twolane.router.doors.http.completion_request import parse_completion
from twolane.router.doors.http.concurrency_limit import ConcurrencyLimit
from twolane.router.doors.http.errors import on_bug, on_disconnect, on_http_error, on_twolane_error
from twolane.router.doors.http.rate_limits import rate_limit_headers
from twolane.router.doors.http.request import RequestBody
from twolane.router.members.model import ModelFacts
from twolane.router.router import Router
from twolane.security.identity import Identity

Chat = Callable[[Request], Awaitable[ASGIApp]]
AskedT = TypeVar("AskedT", bound=RequestBody)


def make_app(
    router: Router,
    config: HttpConfig,
    more_routes: Callable[[Chat], Sequence[BaseRoute]] = lambda chat: (),
) -> Starlette:
    """All requests go through `router`, so limits, admission and errors are the same as with gRPC.
    The connection (`twolane.router.doors.http.connection`) has checked each request's head, and
    delivers its whole body, which is within bounds. `more_routes` are given what answers chats.
    """
    started = int(time.time())

    async def answer(
        request: Request,
        parse: Callable[[bytes], AskedT],
        choice: Callable[[AskedT, Callable[[int], bytes], int], Choice],
    ) -> ASGIApp:
        caller = caller_of(request)
        request.state.rate_limits = partial(_rate_limits, router, caller)
        again = await take_again(request, caller)
        if not again.resumed and not again.looks_first:  # what runs was let in
            router.check_room(caller, priority=0)
        with router.refusals.noting():
            asked = parse(await request.body())
        return Answering(router, asked, caller, again, partial(choice, asked, router.token_bytes))

    async def completions(request: Request) -> ASGIApp:
        parse = partial(parse_completion, max_prompts=config.prompts)
        return await answer(request, parse, Completion)

    async def chat(request: Request) -> ASGIApp:
        return await answer(request, parse_chat, ChatMessage)

    async def models(request: Request) -> Response:
        shown = [_model(model, started) for model in router.models()]
        return JSONResponse({"object": "list", "data": shown}, headers=call_id_header(request))

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        shown = router.models()
        for known in shown:
            if known.name == name:
                return JSONResponse(_model(known, started), headers=call_id_header(request))
        known_names = ", ".join(sorted(each.name for each in shown)) or "none"
        raise UnknownModelError(f"no worker serves {name!r}; known: {known_names}")

    async def health(request: Request) -> Response:
        """As gRPC's health service: 200 only while some model can be served."""
        if router.can_serve():
            return JSONResponse({"status": "serving"})
        return JSONResponse({"status": "not serving"}, 503)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            *more_routes(chat),
            Mount(
                "/v1",
                routes=[
                    Route("/completions", completions, methods=["POST"]),
                    Route("/chat/completions", chat, methods=["POST"]),
                ],
                middleware=[
                    Middleware(
                        ConcurrencyLimit,
                        most=config.requests,
                        retry_after_s=config.retry_after_s,
                        count=router.refusals.overloaded,
                    )
                ],
            ),
        ],
        exception_handlers={
            TwolaneError: on_twolane_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_disconnect,
            Exception: on_bug,
        },
    )


def _rate_limits(router: Router, caller: Identity) -> dict[str, str]:
    return rate_limit_headers(router.quotas(caller.tenant))


def _model(model: ModelFacts, created: int) -> dict[str, object]:
    """OpenAI's fields, vLLM's `max_model_len`, and what a load generator must know."""
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "twolane",
        "max_model_len": model.max_context_tokens,
        "vocab_size": model.vocab_size,
        "fingerprint": model.fingerprint,
    }
