"""What the HTTP door refuses by the head of a request, before any body is read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.own_time import own_time
from tests.router.http.asking import PATH, http_cluster
from tests.router.http.raw import Raw, connect, request
from twolane.router.config import HttpConfig, ServerConfig
from twolane.router.doors.http.head import Body, announced_body, refusal_of_body, refusal_of_head

IDS: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 3}
JSON = "Content-Type: application/json\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


def place(**http: Any) -> ServerConfig:
    return ServerConfig(stop_grace_s=0.2, metrics_port=None, http=HttpConfig(**http))


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        (JSON + "Content-Encoding: gzip\r\n", 415, "Content-Encoding is gzip"),
        (JSON + "Content-Encoding: identity\r\n", 200, ""),
        ("Content-Type: application/json; charset=utf-16\r\n", 415, "charset is utf-16"),
        ('Content-Type: application/json; Charset="UTF-8"\r\n', 200, ""),
        ("Content-Type: text/plain\r\n", 415, "content type is text/plain"),
        ("", 415, "content type is not given"),
        (JSON + "Expect: 200-ok\r\n", 417, "Expect is 200-ok"),
        (JSON + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n", 200, ""),
    ],
)
async def test_only_plain_json_in_utf_8_is_taken(headers: str, status: int, says: str) -> None:
    async with http_cluster() as (_, server, _):
        raw = await connect(server)
        raw.send(request(IDS, headers=headers))
        answered, body = await raw.answer()
        assert answered == status, body
        if says:
            assert says in body["error"]["message"]
            assert await raw.is_closed()
        raw.close()


@pytest.mark.parametrize(("version", "status"), [("HTTP/1.0", 200), ("HTTP/2.0", 505)])
async def test_other_versions_of_http_are_refused(version: str, status: int) -> None:
    async with http_cluster() as (_, server, _):
        raw = await connect(server)
        raw.send(request(IDS, version=version))
        assert (await raw.answer())[0] == status
        assert await raw.is_closed()
        raw.close()


async def test_a_body_is_asked_for_once_its_head_is_good() -> None:
    async with http_cluster() as (_, server, _):
        raw = await connect(server)
        whole = request(IDS, headers=JSON + "Expect: 100-continue\r\n")
        at = whole.index(b"\r\n\r\n") + 4
        raw.send(whole[:at])
        assert (await raw.head())[0] == 100
        raw.send(whole[at:])
        assert (await raw.answer())[0] == 200
        raw.close()


@pytest.mark.parametrize(
    "endless",
    [b"X: " + b"y" * 1000, b"X-aaaa: bbbbbbb\r\n" * 60],
    ids=["one line", "lines"],
)
async def test_an_endless_head_is_refused_at_its_bound(endless: bytes) -> None:
    async with http_cluster(server_config=place(head_bytes=8_000)) as (_, server, _):
        raw = await connect(server)
        raw.send(GET)
        for _ in range(20):
            raw.send(endless)
            endless = endless.removeprefix(b"X: ")
        status, body = await raw.answer()
        assert (status, body["error"]["code"]) == (431, "request_header_fields_too_large")
        assert await raw.is_closed()
        raw.close()


CHUNKED = f"POST {PATH} HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n".encode()


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (GET, b"X: " + b"y" * 9_000 + b"\r\n\r\n"),
        (b"GET /", b"a" * 9_000),
        (CHUNKED + b"0\r\nX: ", b"y" * 9_000),
        (CHUNKED + b"2;", b"y" * 9_000),
    ],
    ids=["head at once", "url", "trailer", "chunk extension"],
)
async def test_whatever_frames_a_request_is_bounded(begins: bytes, goes_on: bytes) -> None:
    async with http_cluster(server_config=place(head_bytes=8_000)) as (_, server, _):
        raw = await connect(server)
        raw.send(begins)
        await asyncio.sleep(0.05)  # so that it is parsed by itself
        raw.send(goes_on)
        assert (await raw.answer())[0] == 431
        raw.close()


async def test_a_head_that_does_not_come_whole_and_a_silent_connection_are_told_so() -> None:
    async with http_cluster(server_config=place(head_timeout_s=0.2)) as (_, server, _):
        silent, slow = await connect(server), await connect(server, GET)
        status, body = await slow.answer()
        assert (status, body["error"]["message"]) == (408, "the head has not arrived within 0.2 s")
        status, body = await silent.answer()
        assert (status, body["error"]["message"]) == (408, "no request has arrived within 0.2 s")
        assert await silent.is_closed()
        assert server._look().counters["refused.deadline_exceeded"] == 2
        for raw in (silent, slow):
            raw.close()


async def test_a_slow_head_is_not_kept_alive_by_its_bytes() -> None:
    async with http_cluster(server_config=place(head_timeout_s=0.3)) as (_, server, _):
        raw = await connect(server)
        raw.send(GET + b"X: ")
        with own_time() as took:
            while not raw.reader._buffer:  # type: ignore[attr-defined]
                raw.send(b"a")
                await asyncio.sleep(0.02)
                assert took.s() < 5.0
        assert (await raw.answer())[0] == 408
        raw.close()


async def flood(raw: Raw) -> None:
    """Send 100 MB, or until the other side has had enough."""
    async with asyncio.timeout(20.0):
        for _ in range(1600):
            raw.send(b" " * 65_536)
            await raw.writer.drain()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/nothing", 404),
        ("GET", "/health", 200),
        ("DELETE", "/health", 405),
        ("PUT", PATH, 405),
    ],
)
async def test_a_body_that_no_path_takes_is_answered_unread(
    method: str, path: str, status: int
) -> None:
    async with http_cluster() as (client, server, _):
        await client.post(PATH, json=IDS)  # there is a model to serve
        for framing in ("Content-Length: 104857600", "Transfer-Encoding: chunked"):
            raw = await connect(server)
            raw.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
            answered, headers = await raw.head()
            assert (answered, headers["connection"]) == (status, "close")
            with pytest.raises(ConnectionError):
                await flood(raw)
            raw.close()


async def test_a_name_as_long_as_a_head_is_not_echoed_whole() -> None:
    async with http_cluster() as (client, _, _):
        answer = await client.get("/v1/models/" + "b" * 60_000)
        assert answer.status_code == 404
        assert len(answer.content) < 2_000


def test_heads_are_judged_by_themselves() -> None:
    chunked = [(b"transfer-encoding", b"chunked"), (b"content-length", b"5")]
    assert announced_body(chunked) == Body(None)
    assert announced_body([(b"content-length", b"5")]) == Body(5)
    assert announced_body([]).is_empty
    assert refusal_of_head("1.1", [(b"expect", b" 100-Continue ")]) is None
    refusal = refusal_of_body([(b"content-type", b"application/json")], Body(11), 10)
    assert refusal is not None
    assert refusal.status == 413
