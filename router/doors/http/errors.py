"""Translates errors to HTTP: a status, and a body in OpenAI's form, an object `error` with
`message`, `type`, `param` (the field, or null) and `code` (the reason). No other module does
that."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from twolane import errors
from twolane.router.doors.http.call_id import HEADER, call_id_header, refused_call_id
from twolane.router.doors.http.head import Headers, Refusal

PATHS = (
    "there are POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /health and, "
    "for people, GET /console"
)
_PATH_BYTES = 200
ASK_FOR_KEY = {"WWW-Authenticate": "Bearer"}  # header of a 401
# Of a 504. OpenAI's clients ask again after any other, though the deadline has passed.
_NOT_AGAIN = {"x-should-retry": "false"}
# Nginx's status: the client has disconnected, or an operator cancelled the request.
CLIENT_LEFT = 499

_STATUS_OF: dict[type[errors.TwolaneError], int] = {
    errors.InvalidRequestError: 400,
    errors.InvalidParameterError: 400,
    errors.UnimplementedError: 400,
    errors.UnauthenticatedError: 401,
    errors.PermissionDeniedError: 403,
    errors.UnknownModelError: 404,
    errors.UnknownSubmissionError: 404,
    errors.DuplicateRequestError: 409,
    errors.TakenOverError: 409,
    errors.PreconditionError: 412,
    errors.OverloadedError: 429,
    errors.QuotaError: 429,
    errors.CancelledError: CLIENT_LEFT,
    errors.InternalError: 500,
    errors.UnavailableError: 503,
    errors.DeadlineError: 504,
}
_TYPE_OF = {403: "permission_error", 429: "rate_limit_error"}
_CODE_OF = {
    errors.UnknownModelError.reason: "model_not_found",
    errors.UnauthenticatedError.reason: "invalid_api_key",
    errors.QuotaError.reason: "rate_limit_exceeded",
}


def error_body(error: errors.TwolaneError) -> dict[str, Any]:
    """The body of an error, for an answer or for the last event of a stream."""
    field = error.metadata.get("field", "")
    if isinstance(error, errors.InvalidRequestError):
        field = field or error.field
    elif isinstance(error, errors.UnknownModelError):
        field = "model"
    code = _CODE_OF.get(error.reason, error.reason.lower())
    if "context" in error.metadata:  # OpenAI's word, by which clients know to shorten the prompt
        code = "context_length_exceeded"
    return _body(error.message, _STATUS_OF[type(error)], field or None, code)


async def on_twolane_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.TwolaneError)
    rate_limits = getattr(request.state, "rate_limits", dict)  # none before the caller is known
    headers = {**call_id_header(request), **rate_limits()}
    if isinstance(error, errors.OverloadedError):
        headers |= retry_after(error.retry_after_s)
    if isinstance(error, errors.UnauthenticatedError):
        headers |= ASK_FOR_KEY
    if isinstance(error, errors.DeadlineError):
        headers |= _NOT_AGAIN
    return JSONResponse(error_body(error), _STATUS_OF[type(error)], headers)


def refusal_answer(refusal: Refusal, headers: Headers) -> bytes:
    """A whole answer, as a connection writes it before the application has begun; `headers` are the
    request's, as far as they have arrived."""
    more = ASK_FOR_KEY if refusal.status == 401 else {}
    if refusal.retry_after_s is not None:
        more = retry_after(refusal.retry_after_s)
    body = msgspec.json.encode(plain_error(refusal.status, refusal.message))
    head = [
        STATUS_LINE[refusal.status],
        b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
        f"{HEADER}: {refused_call_id(headers)}\r\n".encode(),
        b"connection: close\r\n",
        *(f"{name.lower()}: {value}\r\n".encode() for name, value in more.items()),
    ]
    return b"".join([*head, b"\r\n", body])


def too_many_requests(request: Request, message: str, retry_after_s: float) -> Response:
    """The door itself is full. A 429, in contrast, means that the router's queue is."""
    body = plain_error(503, message)
    return JSONResponse(body, 503, {**call_id_header(request), **retry_after(retry_after_s)})


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer an HTTP error: no such path, no such method, a body that is too large, …"""
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).name.lower()
    text = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        path = errors.short(request.url.path, _PATH_BYTES)
        text = f"there is no {request.method} {path} here; {PATHS}"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"{request.url.path} does not take {request.method}; {PATHS}"
    body = _body(text, error.status_code, None, code)
    headers = {**call_id_header(request), **(error.headers or {})}
    return JSONResponse(body, error.status_code, headers)


async def on_disconnect(request: Request, error: Exception) -> Response:
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=CLIENT_LEFT)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception. The server logs it; the client does not get its text."""
    body = _body("a bug in twolane; see the router's log", 500, None, "internal")
    return JSONResponse(body, 500, call_id_header(request))


def plain_error(status: int, message: str) -> dict[str, Any]:
    """The body of an error that is about HTTP itself."""
    usual = HTTPStatus(status).name.lower()
    code = {401: _CODE_OF[errors.UnauthenticatedError.reason], 503: "overloaded"}.get(status, usual)
    return _body(message, status, None, code)


def retry_after(seconds: float) -> dict[str, str]:
    return {
        "Retry-After": str(max(1, math.ceil(seconds))),
        "Retry-After-Ms": str(math.ceil(seconds * 1000)),  # used by OpenAI's clients
    }


def _body(message: str, status: int, param: str | None, code: str) -> dict[str, Any]:
    kind = _TYPE_OF.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
