"""A request's body, within bounds of kind, size and time."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request

_CLOSE = {"Connection": "close"}  # the rest of it is not waited for


async def read_json(request: Request, *, max_bytes: int, within_s: float) -> bytes:
    """Raises HTTPException: 415, 413, 408.

    The content type must be JSON's: a page in a browser cannot send that here without asking, and
    nobody here would allow it.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = f"the content type is {kind or 'not given'}; it must be application/json"
        raise HTTPException(415, text)
    _check_size(_announced(request), max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                body += part
                _check_size(len(body), max_bytes)
    except TimeoutError:
        text = f"the body has not come within {within_s:g} s; {len(body)} bytes have"
        raise HTTPException(408, text, _CLOSE) from None
    return bytes(body)


def _announced(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _check_size(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        text = f"the body has {n_bytes} bytes or more; it must be at most {max_bytes}"
        raise HTTPException(413, text, _CLOSE)
