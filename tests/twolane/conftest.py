"""One scripted door for all client tests, on a thread of its own, as a cluster would be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from tests.twolane.scripted import ScriptedDoor


@dataclass(frozen=True, slots=True)
class Door:
    endpoint: str
    script: ScriptedDoor


@pytest.fixture(scope="session")
def door() -> Iterator[Door]:
    script = ScriptedDoor()
    loop = asyncio.new_event_loop()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        script.register(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield Door(f"127.0.0.1:{port}", script)
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
