"""The metrics page over a bare socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from twolane.rpc import metrics_http
from twolane.rpc.metrics_http import MOST_CONNECTIONS, MetricsEndpoint


@pytest.fixture
async def port() -> AsyncIterator[int]:
    registry = CollectorRegistry()
    Counter("twolane_things", "Things", registry=registry).inc(3)
    endpoint = MetricsEndpoint(
        registry, pages={"/who": lambda headers: (headers["host"].encode(), "text/plain")}
    )
    port = endpoint.bind("127.0.0.1", 0)
    await endpoint.start()
    yield port
    await endpoint.close()


async def ask(port: int, request: str, *headers: str) -> tuple[str, str]:
    """Head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([f"{request} HTTP/1.1", *headers, "", ""]).encode())
    raw = await asyncio.wait_for(reader.read(), 60.0)
    writer.close()
    head, _, body = raw.decode().partition("\r\n\r\n")
    return head, body


async def test_metrics_are_at_metrics_and_nothing_else_is_anywhere_else(port: int) -> None:
    head, body = await ask(port, "GET /metrics")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "twolane_things_total 3.0" in body
    assert (await ask(port, "GET /metrics?x=1"))[1] == body
    for path in ("/", "/foo", "/health", "/metrics/x", "*"):
        head, body = await ask(port, f"GET {path}")
        assert head.startswith("HTTP/1.1 404 Not Found\r\n")
        assert "the pages are /metrics, /who" in body
    assert (await ask(port, "POST /metrics"))[0].startswith("HTTP/1.1 405")
    head, body = await ask(port, "HEAD /metrics")
    assert (head.partition("\r\n")[0], body) == ("HTTP/1.1 200 OK", "")
    assert await ask(port, "GET /who", "Host: h:1") == (head_of("h:1"), "h:1")


def head_of(body: str) -> str:
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        "Connection: close"
    )


async def test_connections_are_bounded_and_the_page_is_there_again_when_some_have_gone(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_http, "_READ_S", 600.0)  # that is not what closes it
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), 60.0) == b"", "one more is closed at once"
    for _, each in [*idle, (reader, writer)]:
        each.close()
        await each.wait_closed()
    async with asyncio.timeout(60.0):
        while not await has_page(port):
            await asyncio.sleep(0.01)


async def has_page(port: int) -> bool:
    """Whether the page is there. A connection that is closed with its request unread is reset."""
    try:
        return bool((await ask(port, "GET /metrics"))[1])
    except ConnectionResetError:
        return False


async def test_no_counter_has_a_created_gauge_beside_it(port: int) -> None:
    assert "_created" not in (await ask(port, "GET /metrics"))[1]


async def test_openmetrics_is_given_to_who_asks_for_it(port: int) -> None:
    accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    head, body = await ask(port, "GET /metrics", accept)
    assert "Content-Type: application/openmetrics-text; version=1.0.0" in head
    assert body.endswith("# EOF\n")
    assert "# EOF" not in (await ask(port, "GET /metrics"))[1]


async def test_a_page_that_cannot_be_made_is_answered_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(headers: metrics_http.Headers) -> tuple[bytes, str]:
        raise KeyError("our bug")

    endpoint = MetricsEndpoint(CollectorRegistry(), pages={"/broken": broken})
    port = endpoint.bind("127.0.0.1", 0)
    await endpoint.start()
    head, body = await ask(port, "GET /broken")
    assert head.startswith("HTTP/1.1 500 Internal Server Error\r\n")
    assert body == "a bug in twolane; see the log\n"
    assert "our bug" in caplog.text
    assert (await ask(port, "GET /metrics"))[0].startswith("HTTP/1.1 200")
    await endpoint.close()
