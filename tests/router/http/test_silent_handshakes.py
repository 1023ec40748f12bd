"""Connections that never complete their TLS handshake end in time."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path

from starlette.applications import Starlette

from tests.pki import Pki
from tests.until import until
from twolane.router.config import HttpConfig
from twolane.router.doors.http.caller import HttpGates
from twolane.router.doors.http.server import HttpServer
from twolane.security.gate import Gate
from twolane.security.tls import server_context


def n_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_silent_handshakes_are_bounded(tmp_path: Path) -> None:
    files = Pki(tmp_path / "pki").files("router/router-0")
    tls = server_context(files, certificate=ssl.CERT_OPTIONAL)
    config = HttpConfig(connections=4, connections_per_peer=4, head_timeout_s=0.3)
    gates = HttpGates(Gate("clients", is_private=True))
    server = HttpServer(Starlette(), config, gates, max_bytes=1000, tls=tls)
    port = server.open("127.0.0.1", 0)
    await asyncio.sleep(0.2)
    before = n_fds()
    silent = []
    for _ in range(100):
        silent.append(socket.create_connection(("127.0.0.1", port)))
        await asyncio.sleep(0)
    try:
        await until(lambda: n_fds() - before - len(silent) <= 0, "all are closed", within_s=10.0)
    finally:
        for each in silent:
            each.close()
        await server.stop(0.2, lambda: None)
