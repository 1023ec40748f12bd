"""One scripted door for all client tests, on a thread of its own, as a cluster would be.

It ends with them: gRPC logs what it has for a closed event loop on any loop that still runs, and
a traceback that is formatted there makes `ast.parse` fail here (CPython 3.11, gh-106905).
"""

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
    admin: str  # unix:PATH of the operators' door
    script: ScriptedDoor


@pytest.fixture(scope="package")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    admin = f"unix:{tmp_path_factory.mktemp('admin') / 'admin.sock'}"
    script = ScriptedDoor()
    loop = asyncio.new_event_loop()

    async def start() -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        script.register(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.add_insecure_port(admin)
        await server.start()
        return server, port

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    yield Door(f"127.0.0.1:{port}", admin, script)
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
