"""The HTTP door as an ASGI application: completions, chat, models, health."""

from __future__ import annotations

import time
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from twolane.errors import TwolaneError, UnknownModelError
from twolane.router.config import HttpConfig
from twolane.router.doors.http.answering import Answering
from twolane.router.doors.http.call_id import take_call_id
from twolane.router.doors.http.caller import caller_of
from twolane.router.doors.http.chat_request import parse_chat
from twolane.router.doors.http.choices.chat import ChatMessage
from twolane.router.doors.http.choices.completion import Completion
from twolane.router.doors.http.completion_request import parse_completion
from twolane.router.doors.http.concurrency_limit import ConcurrencyLimit
from twolane.router.doors.http.errors import on_bug, on_disconnect, on_http_error, on_twolane_error
from twolane.router.doors.http.rate_limits import rate_limit_headers
from twolane.router.members.model import ModelFacts
from twolane.router.router import Router
from twolane.security.identity import Identity


def make_app(router: Router, config: HttpConfig) -> Starlette:
    """Everything goes through `router`, whose limits, admission and errors are those of gRPC. The
    connection (`twolane.router.doors.http.connection`) has checked heads, and brings whole bodies
    within bounds.
    """
    started = int(time.time())

    async def completions(request: Request) -> ASGIApp:
        call_id = take_call_id(request)
        caller = caller_of(request)
        request.state.rate_limits = partial(_rate_limits, router, caller)
        router.check_room(caller, priority=0)
        with router.refusals.noting():
            asked = parse_completion(await request.body(), max_prompts=config.prompts)
        choice = partial(Completion, asked, router.token_bytes)
        return Answering(router, asked, caller, call_id, choice)

    async def chat(request: Request) -> ASGIApp:
        call_id = take_call_id(request)
        caller = caller_of(request)
        request.state.rate_limits = partial(_rate_limits, router, caller)
        router.check_room(caller, priority=0)
        with router.refusals.noting():
            asked = parse_chat(await request.body())
        choice = partial(ChatMessage, asked, router.token_bytes)
        return Answering(router, asked, caller, call_id, choice)

    async def models(request: Request) -> Response:
        shown = [_model(model, started) for model in router.models()]
        return JSONResponse({"object": "list", "data": shown})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        for known in router.models():
            if known.name == name:
                return JSONResponse(_model(known, started))
        raise UnknownModelError(f"no worker serves {name!r}")

    async def health(request: Request) -> Response:
        """As gRPC's health: 200 only while some model can be served."""
        if router.can_serve():
            return JSONResponse({"status": "serving"})
        return JSONResponse({"status": "not serving"}, 503)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Mount(
                "/v1",
                routes=[
                    Route("/completions", completions, methods=["POST"]),
                    Route("/chat/completions", chat, methods=["POST"]),
                ],
                middleware=[
                    Middleware(
                        ConcurrencyLimit, most=config.requests, retry_after_s=config.retry_after_s
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
    """OpenAI's fields; `max_model_len` as vLLM has it, and what a load generator must know."""
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "twolane",
        "max_model_len": model.max_context_tokens,
        "vocab_size": model.vocab_size,
        "fingerprint": model.fingerprint,
    }
