"""However an answer is given up, every page of it is free on both workers within a second."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.real_cluster import inspect, settled
from twolane import CancelledError
from twolane.aclient import AsyncClient
from twolane.stream import AsyncStream
from twolane.testing.local import LocalCluster, start_local

LONG: dict[str, Any] = {"max_tokens": 1900, "ignore_eos": True, "temperature": 0.0}
PROMPTS = ["Once upon a time", "The fox", "A river runs through " * 20]
BOUND_S = 1.0
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
def cluster() -> Iterator[LocalCluster]:
    with start_local(prefill=1, decode=1) as started:
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
    async with asyncio.timeout(10):
        decode = next(
            w for w in (await asyncio.to_thread(cluster.status)).workers if w.roles == ("decode",)
        )
        look = await inspect(decode.endpoint)
        while len(look.rows) < len(PROMPTS):
            await asyncio.sleep(0.02)
            look = await inspect(decode.endpoint)
        assert look.load.pages.used >= len(PROMPTS)


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
    async with cluster.aclient() as client:
        for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2):
            streams = [client.stream("A long walk " * 200, **LONG) for _ in range(3)]
            await asyncio.sleep(delay_s)
            await close_streams(client, streams)
            await settled(cluster, n_workers=2, within_s=BOUND_S)


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
