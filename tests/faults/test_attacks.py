"""One client in its worst behaviour against a running cluster: the router's memory stays bounded,
its log small, and others are answered. The small forms of these are tests of the doors."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.cluster.attacks import SAVED_AT
from tests import h2
from tests.faults import grpc_attacks
from tests.faults.attacker import Harm, Target, harm, router_of
from twolane.testing import LocalCluster, start_local
from twolane.v1 import inference_pb2

pytestmark = pytest.mark.soak

GENERATE = "/twolane.v1.InferenceService/Generate"
POST = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logs = tmp_path_factory.mktemp("logs")
    options: Any = {"pages": 20_000, "decode_rows": 256, "log_dir": logs}
    with start_local(prefill=2, decode=2, engine="fake", **options) as cluster:
        with cluster.client() as client:
            client.generate("Once", max_tokens=4)
        yield cluster, logs / "router-0.log"


async def idle(target: Target) -> None:
    await target.http(1100)
    await asyncio.sleep(5.0)


async def many_idle(target: Target) -> None:
    await target.http(8500)
    await target.grpc(500)
    await asyncio.sleep(3.0)


async def few_descriptors(target: Target) -> None:
    """The router has fewer descriptors than it counted on: its own accept fails, time and again,
    and nobody gets in but those who come while one is free."""
    router = router_of(target.cluster)
    before = router.rlimit(resource.RLIMIT_NOFILE)
    router.rlimit(resource.RLIMIT_NOFILE, (router.num_fds() + 100, before[1]))
    cpu_s = sum(router.cpu_times()[:2])
    await target.http(1100)
    await asyncio.sleep(5.0)
    assert sum(router.cpu_times()[:2]) - cpu_s < 3.0
    router.rlimit(resource.RLIMIT_NOFILE, before)
    for _, writer in target.opened:
        writer.transport.abort()
    await asyncio.sleep(1.5)


async def slow_heads(target: Target) -> None:
    opened = await target.http(200, POST.encode()) + await target.http(300)
    for _ in range(26):
        for _, writer in opened[:200]:
            writer.write(b"a")
        await asyncio.sleep(0.5)
    assert all(reader.at_eof() or reader._buffer for reader, _ in opened)  # type: ignore[attr-defined]


async def unfinished_bodies(target: Target) -> None:
    await target.http(1024, f"{POST}Content-Length: 4000\r\n\r\n{{".encode())
    await asyncio.sleep(5.0)


async def large_unfinished_bodies(target: Target) -> None:
    opened = await target.http(100, f"{POST}Content-Length: 4000000\r\n\r\n".encode())
    for _, writer in opened:
        writer.write(b" " * 3_900_000)
        await asyncio.sleep(0.01)
    await asyncio.sleep(3.0)


async def flood(target: Target, begins: bytes, block: bytes, n_bytes: int = 200 << 20) -> None:
    """Until the other side has had enough."""
    ((_, writer),) = await target.http(1, begins)
    with suppress(OSError, TimeoutError):
        for _ in range(n_bytes // len(block)):
            writer.write(block)
            async with asyncio.timeout(2.0):
                await writer.drain()


async def endless_heads(target: Target) -> None:
    get = GET.removesuffix(b"\r\n")
    await flood(target, get + b"X: ", b"y" * 65_536)
    await flood(target, get, b"X-aaaa: bbbbbbb\r\n" * 4096)
    await flood(target, b"GET /", b"a" * 65_536)
    chunked = f"{POST}Transfer-Encoding: chunked\r\n\r\n".encode()
    await flood(target, chunked + b"0\r\nX: ", b"y" * 65_536)


async def bodies_that_no_path_takes(target: Target) -> None:
    for path in ("POST /nothing", "GET /health"):
        head = f"{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n"
        await flood(target, head.encode(), b" " * 65_536, 100 << 20)


async def pipelines(target: Target) -> None:
    for _ in range(5):
        await flood(target, b"", GET * 1000, 8 << 20)


async def compressed(target: Target) -> None:
    bomb = inference_pb2.GenerateRequest(text="a" * (15 << 20)).SerializeToString()
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target.cluster.endpoint, options=options) as channel:
        generate: Any = channel.unary_stream(GENERATE)
        for _ in range(60):
            with pytest.raises(grpc.aio.AioRpcError, match="disabled"):
                await generate(bomb, compression=grpc.Compression.Gzip).read()


async def unfinished_messages(target: Target) -> None:
    """Two hundred messages of 4 MB each, but for their last bytes."""
    opened = await target.grpc(20, h2.hello())
    async with asyncio.TaskGroup() as tasks:
        for reader, writer in opened:
            tasks.create_task(h2.answer_pings(reader, writer))
            for stream in range(1, 21, 2):
                # no more than the window of a stream that nobody has read
                writer.write(
                    h2.call(GENERATE, stream) + h2.message(bytes(4_000_000), stream, 16_000)
                )
        await asyncio.sleep(12.0)
        for _, writer in opened:
            writer.transport.abort()


async def unread_over_grpc(target: Target) -> None:
    """Two hundred streams that grant no window on connections that answer pings."""
    request = inference_pb2.GenerateRequest(text="Once upon a time")
    request.sampling.max_tokens, request.sampling.ignore_eos = 800, True
    request.sampling.top_logprobs = 20
    raw = request.SerializeToString()
    opened = await target.grpc(20, h2.hello(window=0))
    async with asyncio.TaskGroup() as tasks:
        for reader, writer in opened:
            tasks.create_task(h2.answer_pings(reader, writer))
            for stream in range(1, 21, 2):
                writer.write(h2.call(GENERATE, stream) + h2.message(raw, stream))
        await asyncio.sleep(15.0)
        assert not target.cluster.status().requests_by_state
        for _, writer in opened:
            writer.transport.abort()


async def unread_over_http(target: Target) -> None:
    """Fewer, as their answers in JSON are work enough for a router that harms nobody by it."""
    fields = {"prompt": "Once", "max_tokens": 800, "stream": True, "ignore_eos": True}
    body = json.dumps({**fields, "logprobs": 20}).encode()
    host, _, port = target.cluster.http_endpoint.rpartition(":")
    sockets = []
    for _ in range(50):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect((host, int(port)))
        client.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        sockets.append(client)
    await asyncio.sleep(20.0)
    for client in sockets:
        client.close()


async def opened_and_cancelled(target: Target) -> None:
    """Calls that are reset as soon as they are sent, two thousand a second for ten seconds, each of
    which would be an answer of its own."""
    request = inference_pb2.GenerateRequest(text="Once upon a time")
    request.sampling.max_tokens, request.sampling.ignore_eos = 800, True
    raw = request.SerializeToString()
    opened = await target.grpc(4, h2.hello())
    async with asyncio.TaskGroup() as tasks:
        for reader, writer in opened:
            tasks.create_task(h2.answer_pings(reader, writer))
        for turn in range(100):
            for _, writer in opened:
                for stream in range(1 + 100 * turn, 1 + 100 * (turn + 1), 2):
                    writer.write(h2.call(GENERATE, stream) + h2.message(raw, stream))
                    writer.write(h2.frame(h2.RST_STREAM, 0, stream, bytes([0, 0, 0, 8])))
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10.0):
            while target.cluster.status().requests_by_state.get("running", 0) > 4:
                await asyncio.sleep(0.05)
        for _, writer in opened:
            writer.transport.abort()


ATTACKS: list[tuple[Callable[[Target], Awaitable[None]], float]] = [
    (idle, 60),
    (many_idle, 250),
    (few_descriptors, 30),
    (slow_heads, 30),
    (unfinished_bodies, 40),
    (large_unfinished_bodies, 120),
    (endless_heads, 30),
    (bodies_that_no_path_takes, 20),
    (pipelines, 40),
    (compressed, 20),
    (unfinished_messages, 60),
    (opened_and_cancelled, 100),
    (unread_over_grpc, 100),
    (unread_over_http, 120),
    (grpc_attacks.silent, 60),
    (grpc_attacks.stopped_over_grpc, 60),
    (grpc_attacks.stopped_over_http, 60),
    (grpc_attacks.killed_over_grpc, 60),
    (grpc_attacks.killed_over_http, 60),
    (grpc_attacks.noise, 40),
    (grpc_attacks.bad_metadata, 40),
    (grpc_attacks.floods_of_frames, 80),
]


def keep(name: str, seen: Harm) -> None:
    with Path(os.environ[SAVED_AT]).open("a") as file:
        file.write(json.dumps({"attack": name, **seen.figures()}) + "\n")


# Those that cost their attacker little: others keep nine tenths of their goodput. The rest take the
# cores of this machine from the cluster.
HARMLESS = (
    idle, many_idle, slow_heads, unfinished_bodies, opened_and_cancelled, *grpc_attacks.HARMLESS
)  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("attack", "most_mib"), ATTACKS, ids=[a.__name__ for a, _ in ATTACKS])
async def test_one_client_harms_nobody_else(
    started: tuple[LocalCluster, Path],
    attack: Callable[[Target], Awaitable[None]],
    most_mib: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`most_mib`: by how much the router may grow meanwhile."""
    cluster, log = started
    target = Target(cluster, log, [])
    async with harm(cluster, log) as seen:
        await attack(target)
        await asyncio.sleep(1.0)
    for _, writer in target.opened:
        writer.transport.abort()
    async with asyncio.timeout(20.0):  # so that the next attack begins as this one did
        while router_of(cluster).num_fds() > 100:
            await asyncio.sleep(0.05)
    with capsys.disabled():
        print(f"\n{attack.__name__}: {seen}")
    if SAVED_AT in os.environ:
        keep(attack.__name__, seen)
    assert seen.peak_mib - seen.before_mib < most_mib
    assert seen.log_bytes < 100_000
    if attack in HARMLESS:
        assert seen.goodput_share >= 0.9
    if attack is not few_descriptors:
        assert seen.failed == []
    assert seen.grpc_s
    assert seen.http_s
