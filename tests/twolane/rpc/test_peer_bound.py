"""The bound of one peer's connections, on sockets and on a gRPC door."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from unittest.mock import Mock

import pytest

from tests import h2
from tests.until import wait_until
from twolane.rpc.peer_bound import PeerBound
from twolane.rpc.shared_port import SharedPort

MOST = 3


def by_host(host: str) -> str:
    """So that each address of the loopback is a peer of its own, but the first."""
    host = host.removeprefix("::ffff:")
    return "" if host == "127.0.0.1" else host


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server


def visit(server: socket.socket, source: str) -> tuple[socket.socket, socket.socket]:
    """A connection: its client's end and the server's, which only this module holds."""
    client = socket.create_connection(server.getsockname(), source_address=(source, 0))
    return client, server.accept()[0]


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_process_that_has_no_descriptor_left_closes_nobody_and_goes_on(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = PeerBound(listener.getsockname()[1], 0, by_host)
    ends = visit(listener, "127.0.0.2")
    with monkeypatch.context() as patched:
        patched.setattr("os.listdir", Mock(side_effect=OSError(errno.EMFILE, "too many")))
        assert not bound.enforce()
    assert bound.enforce() == {"127.0.0.2": 1}
    for end in ends:
        end.close()


def test_the_newest_beyond_the_bound_are_closed_of_each_peer_alone(
    listener: socket.socket,
) -> None:
    bound = PeerBound(listener.getsockname()[1], MOST, by_host)
    early = [visit(listener, "127.0.0.2") for _ in range(MOST)]
    assert not bound.enforce()
    late = [visit(listener, "127.0.0.2") for _ in range(2)]
    others = [visit(listener, "127.0.0.3") for _ in range(MOST)]
    unbounded = [visit(listener, "127.0.0.1") for _ in range(2 * MOST)]
    assert bound.enforce() == {"127.0.0.2": 2}
    wait_until(lambda: all(is_closed(client) for client, _ in late), "the news is there")
    assert not any(is_closed(client) for client, _ in early + others + unbounded)
    for ends in early + late + others + unbounded:
        for end in ends:
            end.close()


def test_a_connection_that_ends_makes_room(listener: socket.socket) -> None:
    bound = PeerBound(listener.getsockname()[1], MOST, by_host)
    opened = [visit(listener, "127.0.0.2") for _ in range(MOST)]
    bound.enforce()
    for end in opened.pop():
        end.close()
    opened.append(visit(listener, "127.0.0.2"))
    assert not bound.enforce()
    assert not is_closed(opened[-1][0])
    for ends in opened:
        for end in ends:
            end.close()


def test_connections_of_other_ports_are_left_alone(listener: socket.socket) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        bound = PeerBound(other.getsockname()[1], MOST, by_host)
        opened = [visit(listener, "127.0.0.2") for _ in range(2 * MOST)]
        assert not bound.enforce()
        for ends in opened:
            for end in ends:
                end.close()


@asynccontextmanager
async def door() -> AsyncIterator[tuple[SharedPort, int]]:
    servers = SharedPort(message_bytes=1 << 20, connections=512, idle_s=60.0)
    port = servers.bind("127.0.0.1", 0)
    await servers.start()
    try:
        yield servers, port
    finally:
        await servers.stop(None)


async def test_a_grpc_door_lets_go_of_those_beyond_the_bound_and_serves_the_others() -> None:
    async with door() as (_, port), asyncio.timeout(30.0):
        bound = PeerBound(port, MOST, by_host)
        opened = []
        for _ in range(MOST + 4):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=("127.0.0.2", 0)
            )
            writer.write(h2.hello())
            assert await reader.readexactly(9)  # gRPC has accepted it
            opened.append((reader, writer))
        assert bound.enforce() == {"127.0.0.2": 4}
        for reader, _ in opened[MOST:]:
            with suppress(ConnectionResetError):
                while await reader.read(65_536):
                    pass
        for _, writer in opened[:MOST]:
            writer.write(h2.frame(h2.PING, payload=b"12345678"))
        for reader, _ in opened[:MOST]:
            await reader.readuntil(b"12345678")
        for _, writer in opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
