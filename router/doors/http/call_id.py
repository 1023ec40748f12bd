"""The id of a call: the client's `x-request-id`, or one drawn at random. It names the answer and
its requests at the router, and is a header of every answer and error."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from starlette.requests import Request

from twolane.errors import InvalidRequestError
from twolane.router.limits import MAX_REQUEST_ID_CHARS

HEADER = "x-request-id"


def take_call_id(request: Request) -> str:
    """Set the call's id and return it. Call it once per call. Raises `InvalidRequestError`; the
    error's answer then has a drawn id."""
    request.state.call_id = secrets.token_hex(8)
    given = request.headers.get(HEADER)
    if not given:
        return str(request.state.call_id)
    check_name(given, HEADER)
    request.state.call_id = given
    return given


def check_name(given: str, header: str) -> None:
    """Raise `InvalidRequestError` if `given` cannot name a request."""
    if not _may_name(given):
        text = f"{header} must be at most {MAX_REQUEST_ID_CHARS} printable ASCII characters; "
        raise InvalidRequestError(f"{text}it has {len(given)}", field=header)


def refused_call_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id of a call that is refused by its head, or that asks no worker. The names in `headers`
    are in lower case."""
    given = dict(headers).get(HEADER.encode(), b"").decode("latin-1")
    return given if given and _may_name(given) else secrets.token_hex(8)


def call_id_header(request: Request) -> dict[str, str]:
    """The header with the call's id; if it has not taken one, with that of `refused_call_id`."""
    call_id = getattr(request.state, "call_id", None)
    return {HEADER: call_id or refused_call_id(request.headers.raw)}


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
