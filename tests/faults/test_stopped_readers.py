"""Two hundred clients that ask for long answers and read nothing of them cost the others no more
than two hundred that read: at either door, in the same run."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests import h2
from twolane.errors import TwolaneError
from twolane.prompts import build_request
from twolane.status import ClusterStatus
from twolane.testing import LocalCluster, start_local

pytestmark = pytest.mark.soak

GENERATE = "/twolane.v1.InferenceService/Generate"
N_READERS = 200
N_OTHERS = 8
MOST_MB = 200.0  # a MB a reader
PROMPT = "Once upon a time"
ASKED: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True, "top_logprobs": 20}
Readers = Callable[[LocalCluster], Awaitable[None]]


@dataclass
class Phase:
    """While all the readers' answers were written: how long that took, and what others got."""

    took_s: float
    others_per_s: float
    most_mb: float  # that the router was bigger than before


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    options: Any = {"decode_rows": 128, "device": "cpu"}
    with start_local(prefill=1, decode=2, **options) as running:
        with running.client() as client:
            client.generate(PROMPT, max_tokens=4)
        yield running


async def grpc_reads(cluster: LocalCluster) -> None:
    async with cluster.aclient() as client:
        await asyncio.gather(*(client.generate(PROMPT, **ASKED) for _ in range(N_READERS)))


async def grpc_stops(cluster: LocalCluster) -> None:
    """Twenty connections that answer pings and grant no window."""
    raw = build_request(PROMPT, ASKED).SerializeToString()  # type: ignore[arg-type]
    host, _, port = cluster.endpoint.rpartition(":")
    n_before = n_admitted(await asyncio.to_thread(cluster.status))
    async with asyncio.TaskGroup() as tasks:
        writers = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(h2.hello(window=0))
            tasks.create_task(h2.answer_pings(reader, writer))
            for stream in range(1, 2 * N_READERS // 20, 2):
                writer.write(h2.call(GENERATE, stream) + h2.message(raw, stream))
            writers.append(writer)
        await until_over(cluster, n_before)
        for writer in writers:
            writer.transport.abort()


def http_request() -> bytes:
    asked = {**ASKED, "prompt": PROMPT, "stream": True}
    asked["logprobs"] = asked.pop("top_logprobs")
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def http_reads(cluster: LocalCluster) -> None:
    host, _, port = cluster.http_endpoint.rpartition(":")

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(http_request())
        while await reader.read(65_536):
            pass
        writer.close()

    await asyncio.gather(*(one() for _ in range(N_READERS)))


async def http_stops(cluster: LocalCluster) -> None:
    host, _, port = cluster.http_endpoint.rpartition(":")
    n_before = n_admitted(await asyncio.to_thread(cluster.status))
    opened = []
    for _ in range(N_READERS):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect((host, int(port)))
        client.sendall(http_request())
        opened.append(client)
        await asyncio.sleep(0)
    await until_over(cluster, n_before)
    for client in opened:
        client.close()


def n_admitted(status: ClusterStatus) -> int:
    return sum(tenant.requests for tenant in status.tenants)


async def until_over(cluster: LocalCluster, n_before: int) -> None:
    """All have come, and no request is left but the others'."""
    status = await asyncio.to_thread(cluster.status)
    while n_admitted(status) < n_before + N_READERS or status.tenants[0].live > N_OTHERS:
        await asyncio.sleep(0.1)
        status = await asyncio.to_thread(cluster.status)


@asynccontextmanager
async def others(cluster: LocalCluster) -> AsyncIterator[list[float]]:
    """When each of their answers was complete. They ask again at once."""
    ended: list[float] = []

    async def one() -> None:
        async with cluster.aclient() as client:
            while True:
                with suppress(TwolaneError):
                    await client.generate(PROMPT, max_tokens=16, ignore_eos=True)
                    ended.append(time.monotonic())

    tasks = [asyncio.create_task(one()) for _ in range(N_OTHERS)]
    try:
        yield ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def watched_mb(cluster: LocalCluster) -> AsyncIterator[list[float]]:
    """The router's resident memory, ten times a second."""
    router = psutil.Process(cluster.pid("router-0"))
    sizes_mb = [router.memory_info().rss / 1e6]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.1)
            sizes_mb.append(router.memory_info().rss / 1e6)

    watcher = asyncio.create_task(watch())
    try:
        yield sizes_mb
    finally:
        watcher.cancel()


async def phase(cluster: LocalCluster, readers: Readers) -> Phase:
    async with others(cluster) as ended:
        await asyncio.sleep(1.0)
        n_before, began = len(ended), time.monotonic()
        async with watched_mb(cluster) as sizes_mb:
            await readers(cluster)
        took_s = time.monotonic() - began
        n = len(ended) - n_before
    async with asyncio.timeout(60.0):
        while (await asyncio.to_thread(cluster.status)).requests_by_state:
            await asyncio.sleep(0.05)
    return Phase(took_s, n / took_s, max(sizes_mb) - sizes_mb[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("reads", "stops"), [(grpc_reads, grpc_stops), (http_reads, http_stops)], ids=["grpc", "http"]
)
async def test_readers_that_stop_cost_others_no_more_than_readers_that_read(
    cluster: LocalCluster, reads: Readers, stops: Readers, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, list[Phase]] = {"read": [], "stop": []}
    for _ in range(2):
        found["read"].append(await phase(cluster, reads))
        found["stop"].append(await phase(cluster, stops))
    with capsys.disabled():
        for name, phases in found.items():
            each = ", ".join(
                f"{p.others_per_s:.1f}/s for {p.took_s:.1f} s (router +{p.most_mb:.0f} MB)"
                for p in phases
            )
            print(f"\n{N_READERS} that {name}: others got {each}")
    best = {name: max(p.others_per_s for p in phases) for name, phases in found.items()}
    assert best["stop"] >= 0.9 * best["read"]
    assert max(p.most_mb for p in found["stop"]) <= MOST_MB
    longest_s = {name: min(p.took_s for p in phases) for name, phases in found.items()}
    assert longest_s["stop"] <= 1.2 * longest_s["read"], "rows are free as soon"
