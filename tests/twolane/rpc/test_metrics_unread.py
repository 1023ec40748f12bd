"""Scrapers that read nothing do not keep their connections."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.until import until
from twolane.rpc import metrics_http
from twolane.rpc.metrics_http import MOST_CONNECTIONS, MetricsEndpoint


async def test_scrapers_that_read_nothing_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_http, "_READ_S", 0.3)
    registry = CollectorRegistry()
    pages = Gauge("twolane_pages", "Pages", ["worker"], registry=registry)
    for i in range(1500):
        pages.labels(f"worker-{i}").set(i)  # about the page of a router with 200 workers
    endpoint = MetricsEndpoint(registry)
    port = endpoint.bind("127.0.0.1", 0)
    await endpoint.start()
    before = len(os.listdir("/proc/self/fd"))
    held: list[socket.socket] = []
    for _ in range(3 * MOST_CONNECTIONS):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 200)
        sock.connect(("127.0.0.1", port))
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        held.append(sock)
        await asyncio.sleep(0.005)

    def n_open() -> int:
        return len(os.listdir("/proc/self/fd")) - before - len(held)

    try:
        await until(lambda: n_open() <= 0, "all are closed", within_s=10.0)
    finally:
        for sock in held:
            sock.close()
        await endpoint.close()
