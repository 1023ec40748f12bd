"""The headers of calls for an answer of which an earlier call may have received a part.

    x-twolane-resume: yes             of a stream: its events get ids, and its head names the answer
    x-twolane-resume: REQUEST:TOKEN   resume that answer, after the event `Last-Event-ID`
    idempotency-key: KEY              a call with the same key, path and body is the same call: if
                                      it still runs, it is taken over and not started again
    x-request-id, and a retry count above 0, as OpenAI's clients send it: the same

All of this works at any router. An event's id is the position after it: tokens and bytes of text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from starlette.requests import Request

from twolane.errors import InvalidRequestError
from twolane.router.doors.http.call_id import check_name, take_call_id
from twolane.router.limits import RESUME_TOKEN_BYTES
from twolane.security.identity import Identity
from twolane.v1 import inference_pb2

RESUME, KEY, PLACE = "x-twolane-resume", "idempotency-key", "last-event-id"
_RETRIES = "x-stainless-retry-count"
_PLACE = re.compile(r"(\d{1,9})-(\d{1,12})", re.ASCII)
_ANSWER = re.compile(rf"([0-9a-f]{{32}}):([0-9a-f]{{{2 * RESUME_TOKEN_BYTES}}})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """`label` names the call's requests at the router. `secret` is the same for repeats of one
    call; None: the call cannot be repeated."""

    call_id: str
    label: str
    resumed: inference_pb2.ResumeRequest | None = None  # the answer to resume; None: a new answer
    has_ids: bool = False
    secret: bytes | None = None
    looks_first: bool = False  # for the answer at other routers

    def token(self, at: int) -> bytes | None:
        """The resume token of its answer to prompt `at`; None: the router draws one at random."""
        if self.secret is None:
            return None
        return hashlib.sha256(b"%d:%b" % (at, self.secret)).digest()[:RESUME_TOKEN_BYTES]


def place_line(n_tokens: int, n_text_bytes: int) -> bytes:
    """The id line of an event: the position after it."""
    return b"id: %d-%d\n" % (n_tokens, n_text_bytes)


def name_of(first: inference_pb2.GenerateResponse) -> str:
    """The name by which an answer can be resumed."""
    return f"{first.submission_id}:{first.resume_token.hex()}"


async def take_again(request: Request, caller: Identity) -> Again:
    """Read the headers. Call it once per call. Raises `InvalidRequestError`, naming the header."""
    call_id = take_call_id(request)
    headers = request.headers
    key = headers.get(KEY)
    if key is not None:
        check_name(key, KEY)
    label = key or call_id
    wanted = headers.get(RESUME)
    if wanted is not None and wanted != "yes":
        resumed = _resumed(wanted, headers.get(PLACE))
        return Again(call_id=call_id, label=label, resumed=resumed, has_ids=True)
    is_retry = "x-request-id" in headers and headers.get(_RETRIES, "0") not in ("0", "")
    secret = None
    if key or "x-request-id" in headers:
        parts = (caller.tenant.encode(), label.encode(), request.url.path.encode())
        digest = hashlib.sha256(await request.body())
        secret = b"\0".join((*parts, digest.digest()))
    return Again(
        call_id=call_id,
        label=label,
        has_ids=wanted is not None,
        secret=secret,
        looks_first=bool(key) or is_retry,
    )


def _resumed(wanted: str, place: str | None) -> inference_pb2.ResumeRequest:
    answer = _ANSWER.fullmatch(wanted)
    if answer is None:
        text = f"{RESUME} is yes, or what the head of the stream said that is to go on"
        raise InvalidRequestError(text, field=RESUME)
    at = _PLACE.fullmatch(place or "0-0")
    if at is None:
        text = f"{PLACE} is the id of an event of that stream, such as 17-64"
        raise InvalidRequestError(text, field=PLACE)
    return inference_pb2.ResumeRequest(
        submission_id=answer[1],
        resume_token=bytes.fromhex(answer[2]),
        n_tokens=int(at[1]),
        n_text_bytes=int(at[2]),
    )
