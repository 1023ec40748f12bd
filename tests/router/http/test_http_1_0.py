"""Streams for clients of HTTP/1.0, which knows no chunks: one ends with its connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.router.freed import until_free
from tests.router.http.asking import decoded, http_cluster
from tests.router.http.raw import Raw, connect, request
from tests.router.http.test_unread_answers import n_open
from tests.until import until
from twolane.router.testing.rows import expected_answer

JSON = "Content-Type: application/json\r\n"
ASKED: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 6, "temperature": 0}
STREAM = {**ASKED, "stream": True, "return_token_ids": True}


def asked(fields: dict[str, Any], headers: str = "") -> bytes:
    return request(fields, headers=JSON + headers, version="HTTP/1.0")


async def events_until_the_end(raw: Raw) -> list[Any]:
    """The events of a body that is nothing but events, up to the connection's end."""
    async with asyncio.timeout(30.0):
        *events, rest = (await raw.reader.read()).decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events), events
    return [decoded(event) for event in events]


def tokens_of(events: list[Any]) -> list[int]:
    return [token for event in events for token in event["choices"][0]["token_ids"]]


@pytest.mark.parametrize("wish", ["", "Connection: keep-alive\r\n"], ids=["plain", "keep-alive"])
@pytest.mark.parametrize("step_s", [0.0, 0.02], ids=["at once", "token by token"])
async def test_a_stream_is_sent_without_chunks_and_ends_with_its_connection(
    wish: str, step_s: float
) -> None:
    async with http_cluster(step_s=step_s) as (_, server, _):
        raw = await connect(server, asked(STREAM, wish))
        status, headers = await raw.head()
        assert (status, headers["connection"]) == (200, "close")
        assert not {"transfer-encoding", "content-length"} & headers.keys()
        *events, done = await events_until_the_end(raw)
        assert (tokens_of(events), done) == (expected_answer([1, 2], 6), "[DONE]")
        raw.close()
        await until(lambda: n_open(server) == 0, "the connection has left its place")


async def test_a_connection_that_asked_by_http_1_1_before_gets_no_chunks_either() -> None:
    async with http_cluster(step_s=0.01) as (_, server, _):
        raw = await connect(server, request(STREAM) + asked(STREAM))
        assert (await raw.head())[1]["transfer-encoding"] == "chunked"
        async with asyncio.timeout(30.0):
            await raw.reader.readuntil(b"0\r\n\r\n")
        assert "transfer-encoding" not in (await raw.head())[1]
        *events, _ = await events_until_the_end(raw)
        assert tokens_of(events) == expected_answer([1, 2], 6)
        raw.close()


@pytest.mark.parametrize(
    ("method", "path", "fields", "status"),
    [
        ("POST", "/v1/completions", ASKED, 200),
        ("POST", "/v1/completions", {**STREAM, "max_tokens": -1}, 400),
        ("POST", "/v1/nothing", ASKED, 404),
        ("GET", "/v1/completions", b"", 405),
        ("GET", "/v1/models", b"", 200),
    ],
)
async def test_all_other_answers_tell_their_length(
    method: str, path: str, fields: Any, status: int
) -> None:
    async with http_cluster() as (_, server, _):
        raw = await connect(
            server, request(fields, path=path, method=method, headers=JSON, version="HTTP/1.0")
        )
        found, headers = await raw.head()
        assert (found, headers["connection"]) == (status, "close")
        assert "transfer-encoding" not in headers
        async with asyncio.timeout(30.0):
            body = await raw.reader.read()
        assert len(body) == int(headers["content-length"])
        json.loads(body)
        raw.close()


async def test_an_error_in_a_stream_is_its_last_event() -> None:
    async with http_cluster(step_s=0.05) as (_, server, _):
        raw = await connect(server, asked({**STREAM, "max_tokens": 1900, "timeout_s": 0.5}))
        assert (await raw.head())[0] == 200
        *events, error = await events_until_the_end(raw)
        assert events
        assert error["error"]["code"] == "deadline_exceeded"
        raw.close()


async def test_a_client_that_hangs_up_in_a_stream_frees_both_workers() -> None:
    async with http_cluster(step_s=0.05) as (_, server, cluster):
        raw = await connect(server, asked({**STREAM, "max_tokens": 1900}))
        async with asyncio.timeout(30.0):
            await raw.reader.readuntil(b"data: ")
        raw.close()
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 1


async def test_nobody_is_told_to_continue() -> None:
    """A client of HTTP/1.0 would take that for its answer."""
    async with http_cluster() as (_, server, _):
        raw = await connect(server, asked(ASKED, "Expect: 100-continue\r\n"))
        assert (await raw.answer())[0] == 200
        raw.close()
