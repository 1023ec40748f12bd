"""Real processes whose pages differ: prefill and decode worker of the real model, on the CPU."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.cluster.exact_runner import Probe, lone_answer
from tests.cluster.real_cluster import inspect, left_over
from tests.own_time import own_time
from twolane import AsyncClient, Completion
from twolane.v1 import worker_pb2

PROMPTS = (1, 16, 63, 64, 65, 200, 600)
# A busy machine stops a worker for seconds: it is not to be suspected then.
PATIENT = ("--suspicion-s", "30", "--lease-s", "60")
STEP_TOKENS = "120"  # chunks end inside pages of either size


@dataclass(frozen=True)
class Sides:
    """Where they listen: the router's door and both workers."""

    door: str
    prefill: str
    decode: str


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "twolane.deploy", *arguments, "--parent-pid", str(os.getpid())],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.terminate()
        assert process.wait(60) == 0


def address(process: subprocess.Popen[str], what: str = "serves") -> str:
    assert process.stdout is not None
    _, _, where = process.stdout.readline().strip().partition(f" {what} at ")
    assert where
    return where.split()[0]  # a worker says, too, what it runs on


@contextmanager
def two_sides(prefill: tuple[str, ...], decode: tuple[str, ...], *common: str) -> Iterator[Sides]:
    with ExitStack() as stack:
        router = stack.enter_context(
            running("router", "--port", "0", "--worker-port", "0", *PATIENT)
        )
        door, hears = address(router), address(router, "hears workers")
        workers = []
        for name, options in (("prefill", prefill), ("decode", decode)):
            told = ("--worker-id", name, "--role", name, "--router", hears)
            process = running("worker", *told, *options, *common, *PATIENT)
            workers.append(stack.enter_context(process))
        yield Sides(door, *map(address, workers))


async def ask(client: AsyncClient, probe: Probe) -> Completion:
    params = probe.params
    return await client.generate(
        token_ids=probe.prompt,
        temperature=params.temperature,
        seed=params.seed,
        max_tokens=params.max_tokens,
        ignore_eos=True,
        top_logprobs=2,
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("sizes", "transport", "dtype"),
    [
        ((16, 64), "shm", "float32"),
        ((64, 16), "unix", "bfloat16"),
        ((48, 32), "tcp", "float32"),
        pytest.param((64, 16), "shm", "float32", marks=pytest.mark.soak),
        pytest.param((16, 64), "tcp", "bfloat16", marks=pytest.mark.soak),
    ],
)
async def test_every_bit_is_that_of_one_engine_whatever_the_page_sizes(
    sizes: tuple[int, int], transport: str, dtype: str
) -> None:
    probes = [
        Probe(tuple((i * 37 + n) % 1990 + 3 for i in range(n)), seed)
        for seed, n in enumerate(PROMPTS)
    ]
    prefill, decode = (("--page-tokens", str(n), "--pages", str(8192 // n)) for n in sizes)
    lane = ("--page-lane", "encrypted") if transport == "tcp" else ()
    common = ("--transport", transport, *lane, "--dtype", dtype, "--exact", "--threads", "1")
    with two_sides(prefill, decode, *common, "--device", "cpu", "--step-tokens", STEP_TOKENS) as at:
        async with AsyncClient(at.door) as client:
            await wait_for_model(client)
            for turn in range(2):  # the second finds its beginning in the decode worker's cache
                for probe in probes:
                    completion = await ask(client, probe)
                    assert completion.tokens == lone_answer(dtype, probe)
                    full, rest = divmod(len(probe.prompt), sizes[1])
                    moved = bool(rest) + (0 if turn else full)
                    assert completion.ledger.transfer_pages == moved
                    assert completion.ledger.attempts == 1
        found = await settled(at)
        assert [dict(worker.transports) for worker in found] == [
            {"decode": transport},
            {"prefill": transport},
        ]


async def settled(at: Sides) -> list[worker_pb2.InspectResponse]:
    """Looks into both workers once they hold nothing more, which takes a moment."""
    with own_time() as took:
        while True:
            found = [await inspect(endpoint) for endpoint in (at.prefill, at.decode)]
            if not (left := left_over(found)):
                return found
            assert took.s() < 2.0, left
            await asyncio.sleep(0.02)


async def wait_for_model(client: AsyncClient) -> None:
    """Until both workers have announced themselves."""
    async with asyncio.timeout(60):
        while not await client.models():
            await asyncio.sleep(0.1)
