"""What a call goes by: the client's `x-request-id`, or an id that is drawn here. It names the
answer, its requests at the router, and comes back as a header of every answer and error."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from starlette.requests import Request

from twolane.errors import InvalidRequestError
from twolane.router.limits import MAX_REQUEST_ID_CHARS

HEADER = "x-request-id"


def take_call_id(request: Request) -> str:
    """Once a call. Raises `InvalidRequestError`; the error's answer has a drawn id then."""
    request.state.call_id = secrets.token_hex(8)
    given = request.headers.get(HEADER)
    if not given:
        return str(request.state.call_id)
    if not _may_name(given):
        text = f"{HEADER} must be at most {MAX_REQUEST_ID_CHARS} printable ASCII characters; "
        raise InvalidRequestError(f"{text}it has {len(given)}", field=HEADER)
    request.state.call_id = given
    return given


def refused_call_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Of a call that comes no further than its head, whose names are in lower case."""
    given = dict(headers).get(HEADER.encode(), b"").decode("latin-1")
    return given if given and _may_name(given) else secrets.token_hex(8)


def call_id_header(request: Request) -> dict[str, str]:
    """Of an answer's head; empty before `take_call_id`."""
    call_id = getattr(request.state, "call_id", None)
    return {} if call_id is None else {HEADER: call_id}


def _may_name(given: str) -> bool:
    return len(given) <= MAX_REQUEST_ID_CHARS and given.isascii() and given.isprintable()


def answer_ids(call_id: str, n_answers: int) -> list[str]:
    """The ids of a call's requests at the router. Raises `InvalidRequestError`."""
    if n_answers == 1:
        return [call_id]
    most = MAX_REQUEST_ID_CHARS - len(f"-{n_answers - 1}")
    if len(call_id) > most:
        text = f"{HEADER} has {len(call_id)} characters; of {n_answers} prompts it may have at most"
        raise InvalidRequestError(f"{text} {most}", field=HEADER)
    return [f"{call_id}-{at}" for at in range(n_answers)]
