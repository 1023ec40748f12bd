"""However an answer is given up, every page of it is free on both workers within a second: by a
word to them, not by a timeout, and long before the answer would be over."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.real_cluster import fake_model, inspect, settled
from tests.until import until
from twolane import CancelledError
from twolane.aclient import AsyncClient
from twolane.stream import AsyncStream
from twolane.testing.local import LocalCluster, start_local

LONG: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True, "temperature": 0.0}
PROMPTS = ["Once upon a time", "The fox", "A river runs through " * 20]
SLOW = {"fake_paced": True, "fake_step_s": 0.05, "fake_prefill_token_s": 0.0005}
BOUND_S = 1.0  # of the 95 s that all of these tokens take
PATIENT: dict[str, Any] = {"suspicion_s": 60.0, "lease_s": 300.0, "grace_s": 300.0}
CLIENT = f"""
import asyncio, sys
from twolane.aclient import AsyncClient

async def read(client, prompt):
    stream = client.stream(prompt, **{LONG!r})
    await anext(stream)
    print("reads", flush=True)
    await stream.completion()

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await asyncio.gather(*(read(client, prompt) for prompt in {PROMPTS!r}))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    model = fake_model(tmp_path_factory.mktemp("slow"), **SLOW)
    with start_local(model=model, engine="fake", prefill=1, decode=1, **PATIENT) as started:
        yield started


@asynccontextmanager
async def answering(cluster: LocalCluster) -> AsyncIterator[tuple[AsyncClient, list[AsyncStream]]]:
    """Three answers under way."""
    async with cluster.aclient() as client:
        streams = [client.stream(prompt, **LONG) for prompt in PROMPTS]
        await asyncio.gather(*(anext(stream) for stream in streams))
        await expect_rows(cluster)
        yield client, streams


async def expect_rows(cluster: LocalCluster) -> None:
    """The decode worker holds pages of every answer: it is not over before it is given up."""
    async with asyncio.timeout(30.0):
        decode = next(
            w for w in (await asyncio.to_thread(cluster.status)).workers if w.roles == ("decode",)
        )
        look = await inspect(decode.endpoint)
        while min(len(look.rows), look.load.pages.used) < len(PROMPTS):
            await asyncio.sleep(0.02)
            look = await inspect(decode.endpoint)


async def cancel_by_id(client: AsyncClient, streams: list[AsyncStream]) -> None:
    for stream in streams:
        assert await client.cancel(stream.request_id)


async def close_streams(client: AsyncClient, streams: list[AsyncStream]) -> None:
    for stream in streams:
        await stream.aclose()


async def drop_streams(client: AsyncClient, streams: list[AsyncStream]) -> None:
    streams.clear()


async def close_connection(client: AsyncClient, streams: list[AsyncStream]) -> None:
    await client.close()


@pytest.mark.parametrize("give_up", [cancel_by_id, close_streams, drop_streams, close_connection])
async def test_given_up_answers_leave_no_page_on_either_worker_after_a_second(
    cluster: LocalCluster, give_up: Callable[[AsyncClient, list[AsyncStream]], Awaitable[None]]
) -> None:
    async with answering(cluster) as (client, streams):
        await give_up(client, streams)
        await settled(cluster, n_workers=2, within_s=BOUND_S)


async def test_stream_that_was_cancelled_by_id_ends_with_cancelled(cluster: LocalCluster) -> None:
    async with answering(cluster) as (client, streams):
        await cancel_by_id(client, streams)
        for stream in streams:
            with pytest.raises(CancelledError):
                await stream.completion()


async def test_prompts_that_are_given_up_before_their_first_token_leave_no_page_either(
    cluster: LocalCluster,
) -> None:
    n_before = (await asyncio.to_thread(cluster.status)).counters.get("cancelled", 0)
    async with cluster.aclient() as client:
        for delay_s in (0.0, 0.02, 0.05, 0.1, None):
            asked = {**LONG, "max_tokens": 1000}
            streams = [client.stream("A long walk " * 200, **asked) for _ in range(3)]
            if delay_s is None:
                await until(lambda: cluster.status().requests, "one has come in", is_slow=True)
            else:
                await asyncio.sleep(delay_s)
            await close_streams(client, streams)
            await settled(cluster, n_workers=2, within_s=BOUND_S)
    n_after = (await asyncio.to_thread(cluster.status)).counters["cancelled"]
    assert n_after > n_before, "some had come in"


async def test_client_that_is_killed_leaves_no_page_on_either_worker_after_a_second(
    cluster: LocalCluster,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, cluster.endpoint, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in PROMPTS:
        assert await process.stdout.readline() == b"reads\n"
    await expect_rows(cluster)
    process.kill()
    await process.wait()
    await settled(cluster, n_workers=2, within_s=BOUND_S)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_http_clients_that_hang_up_leave_no_page_on_either_worker_after_a_second(
    cluster: LocalCluster, stream: bool
) -> None:
    host, _, port = cluster.http_endpoint.rpartition(":")
    body = json.dumps({"prompt": PROMPTS[0], "stream": stream, **LONG}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    writers = []
    for _ in range(3):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        writers.append(writer)
    await expect_rows(cluster)
    for writer in writers:
        writer.close()
    await settled(cluster, n_workers=2, within_s=BOUND_S)
