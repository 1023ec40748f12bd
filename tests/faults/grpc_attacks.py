"""Attacks by clients that stop, that die and that send what HTTP/2 has no use for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests import h2
from tests.faults import floods
from tests.faults.attacker import Target
from tests.own_time import own_time
from twolane.prompts import build_request
from twolane.router.config import ReadersConfig

GENERATE = "/twolane.v1.InferenceService/Generate"
N_STREAMS = 50
# What `docs/limits.md` states of silent clients, and two seconds, less the time for which this
# machine did something else: a socket is full only when an answer has been computed that fills it.
SILENT_S = 13.0 + 2.0
UNREAD_S = ReadersConfig().unread_s + 2.0
CLOSED_S = 5.0  # a client whose connections the kernel has closed
WITHIN_S = 120.0  # far more than any of these takes on a busy machine
PROMPT = "Once upon a time"


async def silent(target: Target) -> None:
    """Two hundred connections with a stream each, which take nothing and answer no ping."""
    asked = {"max_tokens": 3000, "ignore_eos": True, "top_logprobs": 20}
    raw = build_request(PROMPT, asked).SerializeToString()  # type: ignore[arg-type]
    first = h2.hello(window=0) + h2.call(GENERATE, 1) + h2.message(raw, 1)
    opened = await target.grpc(200, first)
    with own_time() as took:
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*(floods.until_closed(reader) for reader, _ in opened))
    assert took.s() <= SILENT_S, "the connections were closed"
    await _until_freed(target, CLOSED_S)


async def stopped_over_grpc(target: Target) -> None:
    async with _streaming(target, "grpc") as client:
        client.send_signal(signal.SIGSTOP)
        await _until_freed(target, SILENT_S)


async def stopped_over_http(target: Target) -> None:
    async with _streaming(target, "http") as client:
        client.send_signal(signal.SIGSTOP)
        await _until_freed(target, UNREAD_S)


async def killed_over_grpc(target: Target) -> None:
    async with _streaming(target, "grpc") as client:
        client.kill()
        await _until_freed(target, CLOSED_S)


async def killed_over_http(target: Target) -> None:
    async with _streaming(target, "http") as client:
        client.kill()
        await _until_freed(target, CLOSED_S)


async def noise(target: Target) -> None:
    await floods.random_bytes(target.cluster.endpoint, 600, seed=3)


async def bad_metadata(target: Target) -> None:
    for _ in range(20):
        await floods.metadata(target.cluster.endpoint)


async def floods_of_frames(target: Target) -> None:
    for name in floods.FLOODS:
        await floods.flood(target.cluster.endpoint, name, 64 << 20)


HARMLESS = (
    silent, stopped_over_grpc, stopped_over_http, killed_over_grpc, killed_over_http, noise,
)  # fmt: skip


@asynccontextmanager
async def _streaming(target: Target, door: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that reads fifty long answers, all of which run."""
    endpoint = target.cluster.endpoint if door == "grpc" else target.cluster.http_endpoint
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.streaming_client", door, endpoint, str(N_STREAMS)
    )
    try:
        async with asyncio.timeout(30.0):
            while await _n_rows(target) < N_STREAMS:
                await asyncio.sleep(0.05)
        yield client
    finally:
        if client.returncode is None:
            os.kill(client.pid, signal.SIGKILL)
        await client.wait()


async def _until_freed(target: Target, within_s: float) -> None:
    """No row is left but the others', of which there are few at a time."""
    with own_time() as took:
        async with asyncio.timeout(WITHIN_S):
            while await _n_rows(target) > N_STREAMS // 5:
                await asyncio.sleep(0.05)
    print(f"freed after {took.s():.1f} s of its own, {took.seen.real_s:.1f} s in all")
    assert took.s() <= within_s


async def _n_rows(target: Target) -> int:
    """Rows of the workers, or the router's requests where these are more."""
    status = await asyncio.to_thread(target.cluster.status)
    return max(
        sum(worker.rows for worker in status.workers), sum(status.requests_by_state.values())
    )
