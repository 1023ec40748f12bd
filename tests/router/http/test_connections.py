"""Connections of the HTTP door that idle, stall or flood: they keep nobody out, and hold little."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest

from tests.router.freed import until_free
from tests.router.http.asking import PATH, http_cluster
from tests.router.http.raw import Raw, connect, request
from twolane.router.config import HttpConfig, LimitsConfig, RouterConfig, ServerConfig
from twolane.router.doors.http.connection_budget import ConnectionBudget

IDS: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 3}
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNFINISHED = request({"prompt": "x" * 4000})[:-3000]


def place(**http: Any) -> ServerConfig:
    return ServerConfig(stop_grace_s=0.2, metrics_port=None, http=HttpConfig(**http))


async def test_the_connection_that_waits_longest_gives_way_to_one_that_comes() -> None:
    async with http_cluster(server_config=place(connections=3)) as (_, server, _):
        idle = [await connect(server) for _ in range(3)]
        late = await connect(server)
        late.send(request(IDS))
        assert (await late.answer())[0] == 200
        assert await idle[0].is_closed()
        assert not idle[1].reader.at_eof()
        for raw in (*idle, late):
            raw.close()


async def test_requests_that_run_give_way_to_nobody() -> None:
    async with http_cluster(step_s=0.05, server_config=place(connections=2)) as (_, server, _):
        running = [await connect(server) for _ in range(2)]
        for raw in running:
            raw.send(request({**IDS, "max_tokens": 1900, "stream": True}))
            assert (await raw.head())[0] == 200
        late = await connect(server)
        assert await late.is_closed()
        for raw in running:
            await raw.reader.readuntil(b"data: ")
        for raw in (*running, late):
            raw.close()


async def test_idle_connections_of_any_number_shut_nobody_out() -> None:
    async with http_cluster(server_config=place(connections=20)) as (client, server, _):
        idle = [await connect(server) for _ in range(100)]
        assert (await client.post(PATH, json=IDS)).status_code == 200
        assert sum([await raw.is_closed() for raw in idle[:80]]) == 80
        assert server._look().counters["refused.overloaded"] >= 80
        for raw in idle:
            raw.close()


async def test_an_idle_connection_is_closed_in_time_after_its_answer() -> None:
    waits = place(keep_alive_s=0.2, head_timeout_s=600.0, body_timeout_s=600.0)
    async with http_cluster(server_config=waits) as (_, server, _):
        raw = await connect(server, GET + GET)
        for _ in range(2):
            assert (await raw.answer())[0] == 200
        assert await raw.is_closed()
        raw.close()


async def test_unfinished_bodies_do_not_count_as_requests_that_run() -> None:
    async with http_cluster(server_config=place(requests=2)) as (client, server, _):
        unfinished = [await connect(server) for _ in range(50)]
        for raw in unfinished:
            raw.send(UNFINISHED)
        await asyncio.sleep(0.05)
        assert (await client.post(PATH, json=IDS)).status_code == 200
        for raw in unfinished:
            raw.close()


async def test_the_oldest_unfinished_body_gives_way_when_they_are_too_large_together() -> None:
    config = RouterConfig(limits=LimitsConfig(message_bytes=100_000))
    bounds = place(bodies_bytes=250_000)
    async with http_cluster(config=config, server_config=bounds) as (client, server, _):
        whole = request({"prompt": "x" * 90_000})
        unfinished = [await connect(server) for _ in range(3)]
        for raw in unfinished:
            raw.send(whole[:-1000])
            await asyncio.sleep(0.02)  # so that it is known who came first
        status, body = await unfinished[0].answer()
        assert (status, body["error"]["code"]) == (503, "overloaded")
        assert (await client.post(PATH, json=IDS)).status_code == 200
        unfinished[1].send(whole[-1000:])  # it has a text and no tokenizer, but it was heard
        assert (await unfinished[1].answer())[0] == 400
        for raw in unfinished:
            raw.close()


async def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    async with http_cluster() as (client, server, _):
        await client.post(PATH, json=IDS)  # there is a model by now
        raw = await connect(server)
        raw.send(GET * 50 + request(IDS) + GET)
        kinds = [(await raw.answer())[1]["object"] for _ in range(52)]
        assert kinds == ["list"] * 50 + ["text_completion", "list"]
        halves = request(IDS) + GET
        for at in range(0, len(halves), 7):  # however they are cut
            raw.send(halves[at : at + 7])
            await asyncio.sleep(0)
        assert [(await raw.answer())[0] for _ in range(2)] == [200, 200]
        raw.close()


async def test_pipelined_chunked_bodies_end_where_they_end() -> None:
    chunks = b"5\r\n" + b'{"pro' + b"\r\n" + b"d\r\n" + b'mpt": [1, 2]}' + b"\r\n0\r\nX: y\r\n\r\n"
    head = f"POST {PATH} HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
    async with http_cluster() as (_, server, _):
        raw = await connect(server)
        raw.send((head.encode() + b"\r\n\r\n" + chunks) * 3 + GET)
        answers = [await raw.answer() for _ in range(4)]
        assert [status for status, _ in answers] == [200] * 4, answers
        raw.close()


async def flood(raw: Raw) -> None:
    """Send two million requests; raises TimeoutError when the other side takes no more."""
    for _ in range(2000):
        raw.send(GET * 1000)
        async with asyncio.timeout(1.0):
            await raw.writer.drain()


async def test_a_flood_of_pipelined_requests_that_nobody_reads_is_not_taken() -> None:
    async with http_cluster() as (client, server, _):
        raw = await connect(server)
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(TimeoutError):
            await flood(raw)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 30_000
        assert (await client.get("/v1/models")).status_code == 200
        raw.close()


async def test_a_client_that_hangs_up_with_a_request_in_the_queue_is_noticed() -> None:
    async with http_cluster(step_s=0.05) as (_, server, cluster):
        raw = await connect(server)
        raw.send(request({**IDS, "max_tokens": 1900, "stream": True}) + GET)
        assert (await raw.head())[0] == 200
        raw.writer.close()
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 1


class Visitor:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.has_left = False

    def give_way(self) -> None:
        self.has_left = True


def test_one_peer_has_no_more_than_its_share_and_the_loopback_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = ConnectionBudget(HttpConfig(connections=10, connections_per_peer=2))
    one = [Visitor("192.0.2.1") for _ in range(3)]
    assert [room.try_enter(connection) for connection in one] == [True, True, False]
    assert not any(room.try_enter(Visitor("192.0.2.1")) for _ in range(99))
    assert caplog.messages == [
        "the HTTP door refused 1 connections; the last: 192.0.2.1 already has 2"
    ], "one line, and the next one some time later"
    assert room.try_enter(Visitor("192.0.2.2"))
    assert all(room.try_enter(Visitor("")) for _ in range(7))
    room.leave(one[0])
    assert room.try_enter(one[2])
