"""The HTTP door's connections: clients that hang up, are slow, too many; a router that stops."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.applications import Starlette

from tests.own_time import own_time
from tests.router.freed import until_free
from tests.router.http.asking import PATH, http_cluster
from tests.until import until
from twolane.router.config import HttpConfig, LimitsConfig, RouterConfig, ServerConfig
from twolane.router.doors.http.caller import HttpGates
from twolane.router.doors.http.server import HttpServer
from twolane.router.doors.server import RouterServer
from twolane.router.testing.served import serve_cluster
from twolane.rpc.listen import ListenError
from twolane.security.gate import Gate

LONG: dict[str, Any] = {"prompt": [1], "max_tokens": 1900, "temperature": 0}
IDS: dict[str, Any] = {"prompt": [1, 2], "max_tokens": 3}


def raw_request(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def connect(server: RouterServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.http_port)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_hangs_up_frees_both_workers(stream: bool) -> None:
    async with http_cluster(step_s=0.05) as (_, server, cluster):
        reader, writer = await connect(server)
        writer.write(raw_request({**LONG, "stream": stream}))
        while not cluster.workers["d0"].rows:
            await asyncio.sleep(0.01)
        if stream:
            await reader.readuntil(b"data: ")
        writer.close()
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 1


async def test_a_client_that_hangs_up_before_its_first_token_frees_the_prefill_worker() -> None:
    async with http_cluster(prefill_s=30.0) as (_, server, cluster):
        _, writer = await connect(server)
        writer.write(raw_request({**LONG, "stream": True}))
        while not cluster.workers["p0"].rows:
            await asyncio.sleep(0.01)
        writer.transport.abort()  # a reset, not a clean end
        await until_free(server, cluster)


async def test_a_client_that_hangs_up_while_its_model_is_awaited_is_forgotten() -> None:
    async with http_cluster("p0", config=RouterConfig(models=("fake",))) as (_, server, _):
        board = server.router._dispatcher.board
        async with asyncio.timeout(30.0):
            while [worker.state for worker in server.router.status().workers] != ["alive"]:
                await asyncio.sleep(0.01)
        n_tasks = len(asyncio.all_tasks())
        _, writer = await connect(server)
        writer.write(raw_request(LONG))
        async with asyncio.timeout(30.0):
            while not board.n_expecting:
                await asyncio.sleep(0.01)
        writer.close()
        async with asyncio.timeout(30.0):
            while board.n_expecting or len(asyncio.all_tasks()) > n_tasks:
                await asyncio.sleep(0.01)


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with http_cluster() as (_, server, _):
        reader, writer = await connect(server)
        for _ in range(3):
            writer.write(raw_request({**IDS, "stream": True}))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"data: [DONE]\n\n")
            await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_a_body_that_does_not_come_is_408_and_one_too_large_413_before_it_is_read() -> None:
    http = HttpConfig(body_timeout_s=0.2)
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=http)
    config = RouterConfig(limits=LimitsConfig(message_bytes=1000))
    async with http_cluster(config=config, server_config=place) as (_, server, _):
        reader, writer = await connect(server)
        writer.write(raw_request(IDS)[:-3])
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        reader, writer = await connect(server)
        writer.write(raw_request({"prompt": "x" * 2000})[:200])
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()
        reader, writer = await connect(server)  # its size is not told before
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n7d0\r\n".encode() + b"x" * 1500)
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_more_requests_than_may_run_are_answered_503_with_the_time_to_come_back() -> None:
    http = HttpConfig(requests=2, retry_after_s=1.5)
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=http)
    async with http_cluster(step_s=0.05, server_config=place) as (client, server, _):
        idle = [await connect(server) for _ in range(5)]
        for reader, writer in idle:  # kept alive after an answer, they do not count
            writer.write(raw_request({**IDS, "stream": True}))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"0\r\n\r\n")
        running = [await connect(server) for _ in range(2)]
        for reader, writer in running:
            writer.write(raw_request({**LONG, "stream": True}))
            await reader.readuntil(b"data: ")
        refused = await client.post(PATH, json=IDS)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "2"
        assert refused.headers["retry-after-ms"] == "1500"
        assert refused.json()["error"] == {
            "message": "2 requests are running here already",
            "type": "server_error",
            "param": None,
            "code": "overloaded",
        }
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 200
        running[0][1].close()  # one hangs up
        async with asyncio.timeout(30.0):
            while (await client.post(PATH, json=IDS)).status_code != 200:
                await asyncio.sleep(0.05)
        for _, writer in [*idle, *running]:
            writer.close()


async def test_a_request_that_fails_makes_room_again() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=HttpConfig(requests=1))
    async with http_cluster(server_config=place) as (client, _, _):
        for _ in range(3):
            assert (await client.post(PATH, json={"prompt": [1], "n": 2})).status_code == 400
            assert (await client.post(PATH, json=IDS)).status_code == 200


async def test_answers_get_the_grace_of_a_stop() -> None:
    place = ServerConfig(stop_grace_s=60.0, metrics_port=None)
    async with http_cluster(step_s=0.05, server_config=place) as (client, server, cluster):
        answer = asyncio.create_task(client.post(PATH, json={**LONG, "max_tokens": 9}))
        await until(lambda: cluster.workers["d0"].rows)
        with own_time() as took:
            await server.__aexit__(None, None, None)
        assert (await answer).json()["choices"][0]["finish_reason"] == "length"
        assert took.s() < 20.0, "it stops once it has answered"


async def test_a_request_that_waits_for_a_worker_as_the_router_stops_gets_a_typed_error() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None)
    async with serve_cluster(server_config=place) as (server, _):
        reader, writer = await connect(server)
        writer.write(raw_request(IDS))
        await until(lambda: server.router._dispatcher.board.n_expecting)
        await server.__aexit__(None, None, None)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"message":"the router is stopping"' in answer
        writer.close()


async def test_answers_that_outlast_the_grace_of_a_stop_end_with_one_typed_error() -> None:
    place = ServerConfig(stop_grace_s=0.5, metrics_port=None)
    async with http_cluster(step_s=0.05, server_config=place) as (_, server, _):
        reader, writer = await connect(server)
        writer.write(raw_request({**LONG, "stream": True}))
        await reader.readuntil(b"data: ")
        began = asyncio.get_running_loop().time()
        with own_time() as took:
            await server.__aexit__(None, None, None)
        took_s = asyncio.get_running_loop().time() - began
        rest = await reader.read()
        assert b'"code":"unavailable"' in rest
        assert b"[DONE]" not in rest
        assert took_s >= 0.5
        assert took.s() < 3.0
        with pytest.raises(ConnectionRefusedError):
            await connect(server)
        writer.close()


async def test_a_request_that_never_comes_whole_does_not_hold_up_a_stop() -> None:
    http = HttpConfig(head_timeout_s=300.0, body_timeout_s=300.0)
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=http)
    async with http_cluster(server_config=place) as (_, server, _):
        _, writer = await connect(server)
        writer.write(raw_request(IDS)[:-3])
        await asyncio.sleep(0.05)
        with own_time() as took:
            await server.__aexit__(None, None, None)
        assert took.s() < 3.0
        writer.close()


async def test_a_bug_of_ours_is_500_and_serving_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> None:
        raise RuntimeError("secret")

    async with http_cluster() as (client, server, _):
        with monkeypatch.context() as broken:
            broken.setattr(server.router, "models", break_down)
            response = await client.get("/v1/models")
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal")
        assert "secret" not in response.text
        assert (await client.post(PATH, json=IDS)).status_code == 200


async def test_a_router_without_the_door_has_no_http_address() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=None)
    async with http_cluster(server_config=place) as (_, server, _):
        assert server.http_address == ""


async def test_events_go_out_at_once_and_do_not_wait_for_acknowledgements() -> None:
    gate = Gate("", is_private=True)
    door = HttpServer(
        Starlette(), HttpConfig(port=0), HttpGates(gate), max_bytes=1000
    )  # gets no request
    port = door.open("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(30.0):
        while not (connections := door._server.server_state.connections):
            await asyncio.sleep(0.01)
    (accepted,) = connections
    of_server = accepted.transport.get_extra_info("socket")
    assert of_server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    writer.close()
    await door.stop(1.0, lambda: None)


async def test_a_listener_that_stays_readable_does_not_hold_up_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As without descriptors: nothing is accepted, and the kernel's queue is not empty."""
    gate = Gate("", is_private=True)
    door = HttpServer(Starlette(), HttpConfig(port=0), HttpGates(gate), max_bytes=1000)
    port = door.open("127.0.0.1", 0)
    await until(lambda: door._server.started)
    loop = asyncio.get_running_loop()
    for server in door._server.servers:
        for listener in server.sockets:
            loop.remove_reader(listener.fileno())
    with socket.create_connection(("127.0.0.1", port)):
        async with asyncio.timeout(10.0):
            await door.leave_port()
    await door.stop(1.0, lambda: None)


async def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = HttpConfig(port=taken.getsockname()[1])
        with pytest.raises(ListenError, match=r"\(--http-port\): it is in use"):
            async with http_cluster(server_config=ServerConfig(http=http)):
                pass
