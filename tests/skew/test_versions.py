"""This version beside the frozen one: each understands the other, on real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.skew.mixed_cluster import FROZEN, MODEL, OURS, ROOT, MixedCluster, mixed_cluster, unpack
from twolane import AsyncClient, CancelledError
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.params import SamplingParams

VOCABULARY = json.loads((MODEL / "config.json").read_text())["vocab_size"]
ENGINE = FakeEngineConfig(vocab_size=VOCABULARY, first_token=3)
N_TOKENS = 40

# What a process knows of the wire: every field by message and name, every enum value, every method.
SCHEMA = """
import importlib, json, pkgutil
import twolane.v1
known = {}
def walk(message):
    for field in message.fields:
        of = field.message_type or field.enum_type
        oneof = field.containing_oneof.name if field.containing_oneof else ""
        known[f"{message.full_name}.{field.name}"] = [
            field.number, field.type, field.is_repeated, of.full_name if of else "", oneof]
    for inner in message.nested_types:
        walk(inner)
    for enum in message.enum_types:
        for value in enum.values:
            known[f"{enum.full_name}.{value.name}"] = [value.number]
for module in pkgutil.iter_modules(twolane.v1.__path__):
    if not module.name.endswith("_pb2"):
        continue
    file = importlib.import_module(f"twolane.v1.{module.name}").DESCRIPTOR
    for message in file.message_types_by_name.values():
        walk(message)
    for enum in file.enum_types_by_name.values():
        for value in enum.values:
            known[f"{enum.full_name}.{value.name}"] = [value.number]
    for service in file.services_by_name.values():
        for method in service.methods:
            known[method.full_name] = [method.input_type.full_name, method.output_type.full_name]
print(json.dumps(known))
"""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("frozen"))


def schema(where: Path) -> dict[str, list[object]]:
    asked = [sys.executable, "-c", SCHEMA]
    environment = {**os.environ, "PYTHONPATH": str(where)}
    found = subprocess.run(asked, cwd=where, env=environment, capture_output=True, check=True)
    known: dict[str, list[object]] = json.loads(found.stdout)
    return known


def test_no_field_of_the_frozen_version_is_gone_or_has_another_number_or_type(
    frozen: Path,
) -> None:
    theirs, ours = schema(frozen), schema(ROOT)
    assert len(theirs) > 300
    changed = {name: (was, ours.get(name)) for name, was in theirs.items() if ours.get(name) != was}
    assert changed == {}, "add another field; leave these, or take them out of use with `reserved`"


def prompt(number: int) -> list[int]:
    return [(number * 31 + i * 7) % 1000 + 3 for i in range(5 + 37 * number % 200)]


async def answers_right(client: AsyncClient, numbers: Sequence[int]) -> None:
    """All at once; every token is the engine's, whoever computed and moved it."""
    completions = await asyncio.gather(
        *(
            client.generate(token_ids=prompt(n), max_tokens=N_TOKENS, seed=n, temperature=1.0)
            for n in numbers
        )
    )
    for n, completion in zip(numbers, completions, strict=True):
        params = SamplingParams(seed=n)
        tokens = [token.token_id for token in completion.tokens]
        assert tokens == expected_answer(prompt(n), params, N_TOKENS, config=ENGINE)
        assert completion.ledger.transfer_bytes > 0


# Eight processes of Python take some seconds. No fewer show router with worker and prefill with
# decode worker, each of either version.
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("router", "other"), [(OURS, FROZEN), (FROZEN, OURS)])
async def test_a_router_works_with_workers_of_the_other_version(
    router: str, other: str, frozen: Path
) -> None:
    with mixed_cluster(frozen) as cluster:
        await asyncio.to_thread(cluster.start_router, router)
        for role in ("prefill", "decode"):
            await asyncio.to_thread(cluster.start_worker, other, role, role)
        async with AsyncClient(cluster.door) as client:
            await wait_until_served(client)
            await answers_right(client, range(12))
            await cancelled_when_asked(client)
            await answers_right(client, range(12, 16))
            await asyncio.to_thread(cluster.start_worker, router, "decode-same", "decode")
            await drained_without_loss(cluster, "decode", client)
            await answers_right(client, range(16, 20))  # pages go from one version to the other


async def cancelled_when_asked(client: AsyncClient) -> None:
    name = "to be cancelled"
    stream = client.stream(token_ids=prompt(1), max_tokens=2000, request_id=name)
    for _ in range(3):
        await anext(stream)
    while not await client.cancel(name):  # on a busy machine it may be over: then another one
        assert len((await stream.completion()).tokens) == 2000
        stream = client.stream(token_ids=prompt(1), max_tokens=2000, request_id=name)
        await anext(stream)
    with pytest.raises(CancelledError):
        await stream.completion()
    assert not await client.cancel("never heard of")


async def drained_without_loss(cluster: MixedCluster, worker_id: str, client: AsyncClient) -> None:
    """A decode worker ends in the middle of answers: none loses a token, none has one twice."""
    asked = [
        asyncio.create_task(
            client.generate(token_ids=prompt(n), max_tokens=200, seed=n, temperature=1.0)
        )
        for n in range(6)
    ]
    await asyncio.sleep(0.1)  # any moment will do
    cluster.drain(worker_id)
    for n, completion in enumerate(await asyncio.gather(*asked)):
        params = SamplingParams(seed=n)
        tokens = [token.token_id for token in completion.tokens]
        assert tokens == expected_answer(prompt(n), params, 200, config=ENGINE)
    assert await asyncio.to_thread(cluster.workers[worker_id].wait, 30) == 0


async def wait_until_served(client: AsyncClient) -> None:
    async with asyncio.timeout(60):
        while not await client.models():
            await asyncio.sleep(0.05)
