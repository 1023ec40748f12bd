"""Workers that are stopped (SIGSTOP) are suspected, never proven dead: nothing of theirs is reused
early, nobody waits for them, and when they go on within one lease nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.real_cluster import fake_model, inspect, settled
from tests.kvtransfer.nixl_marks import over_nixl
from twolane import AsyncClient, Completion
from twolane.testing import LocalCluster, start_local

LEASE_S = 2.0
STOPPED = ("prefill-0", "decode-0")


# Pages over unix sockets are sent by the code of tcp.
UNIX = pytest.param("unix", marks=pytest.mark.soak)


@pytest.fixture(scope="module", params=["fake", pytest.param("model", marks=pytest.mark.soak)])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The fake one fails a row whose pages hold anything else than was written for it."""
    if request.param == "model":
        return {"exact": True}
    model = fake_model(tmp_path_factory.mktemp("fake"), fake_step_s=0.02, fake_paced=True)
    return {"engine": "fake", "model": model}


@pytest.fixture(scope="module", params=["tcp", UNIX, "shm", over_nixl()])
def cluster(request: pytest.FixtureRequest, engine: dict[str, Any]) -> Iterator[LocalCluster]:
    with start_local(
        **engine,
        prefill=2,
        decode=2,
        transport=[request.param],
        step_tokens=40,
        decode_rows=16,
        lease_s=LEASE_S,
        heartbeat_s=0.3,
        suspicion_s=1.0,
    ) as started:
        yield started


async def ask(client: AsyncClient, prompt: list[int]) -> Completion:
    return await client.generate(
        token_ids=prompt, temperature=0.0, seed=1, max_tokens=40, ignore_eos=True, top_logprobs=0
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", STOPPED)
async def test_a_stopped_worker_delays_its_requests_and_changes_none(
    cluster: LocalCluster, name: str
) -> None:
    endpoints = {w.worker_id: w.endpoint for w in (await asyncio.to_thread(cluster.status)).workers}
    async with cluster.aclient() as client:
        async with asyncio.timeout(60):
            asked = await asked_until_it_has_rows(client, name, endpoints[name])
        cluster.kill(name, signal.SIGSTOP)
        answers = await asyncio.gather(*asked.values())
        cluster.kill(name, signal.SIGCONT)
        await until_alive(cluster, name)
        calm = [await ask(client, list(prompt)) for prompt in asked]
        assert [a.tokens for a in answers] == [c.tokens for c in calm]
    await settled(cluster, 4, within_s=LEASE_S + 1.0)


async def asked_until_it_has_rows(
    client: AsyncClient, name: str, endpoint: str
) -> dict[tuple[int, ...], asyncio.Task[Completion]]:
    """Requests, by their prompts, of which the worker has some, so that stopping it matters: one
    that is suspected just then, on a busy machine, gets none, and others are asked for."""
    for first in itertools.count(11 + 4 * STOPPED.index(name), 4 * len(STOPPED)):
        # none begins like another: no worker has their pages before they are asked
        prompts: list[tuple[int, ...]] = [(first + i, 7, 5) * 200 for i in range(4)]
        asked = {each: asyncio.create_task(ask(client, list(each))) for each in prompts}
        while not all(task.done() for task in asked.values()):
            if (await inspect(endpoint)).rows:
                return asked
            await asyncio.sleep(0.002)
        await asyncio.gather(*asked.values())
    raise AssertionError("they are without end")


async def until_alive(cluster: LocalCluster, name: str) -> None:
    async with asyncio.timeout(60):
        while name not in {
            w.worker_id
            for w in (await asyncio.to_thread(cluster.status)).workers
            if w.state == "alive"
        }:
            await asyncio.sleep(0.05)
