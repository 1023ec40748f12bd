"""A page of another site asks nothing here, though its name resolves to this machine by now."""

from __future__ import annotations

import pytest

from tests.router.http.asking import http_cluster
from tests.router.http.raw import connect, request

JSON = "Content-Type: application/json\r\n"
FIELDS = {"prompt": [1, 2], "max_tokens": 3}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example:7202", 403),
        ("null", 403),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:7202", 200),
        ("", 200),
    ],
)
async def test_pages_of_other_sites_are_refused(origin: str, status: int) -> None:
    """DNS rebinding: to the browser it is one origin, so there is no preflight that could fail."""
    shown = f"Origin: {origin}\r\n" if origin else ""
    async with http_cluster() as (_, server, _):
        raw = await connect(server, request(FIELDS, headers=JSON + shown))
        found, said = await raw.answer()
        raw.close()
        assert found == status, said
