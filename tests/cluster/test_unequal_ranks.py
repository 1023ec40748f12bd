"""Real clusters whose sides are spread over unequal numbers of ranks, from a topology file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import pytest

from tests.cluster.exact_runner import Probe, lone_answer
from tests.cluster.real_cluster import settled
from tests.processes import is_alive
from tests.until import wait_until
from twolane import Client, Completion
from twolane.testing import LocalCluster, start_local

WORKERS = "workers: {device: cpu, threads: 1, dtype: float32, step_tokens: 120, kv_bytes: 16000000}"
# A busy machine stops a worker for seconds: it is not to be suspected then.
PATIENT: dict[str, Any] = {"suspicion_s": 30.0, "lease_s": 60.0}
LENGTHS = (1, 63, 64, 200, 600)  # in chunks that end inside pages
N_TOKENS, N_TOKENS_AMID_DEATH = 12, 120
QUICK = [(2, 1, "unix", (16, 64)), (1, 2, "shm", (64, 16))]
SOAK = [
    (p, d, transport, (48, 32))
    for (p, d), transport in zip(
        itertools.product((1, 2, 4), (1, 2, 4)), itertools.cycle(("shm", "unix", "tcp")),
        strict=False,
    )
]  # fmt: skip


def prompt_of(first: int, length: int) -> list[int]:
    return [(i * 37 + first) % 1990 + 3 for i in range(length)]


PROMPTS = [prompt_of(n, n) for n in LENGTHS]


def completions(client: Client) -> list[Completion]:
    return [
        client.generate(token_ids=prompt, temperature=0, max_tokens=N_TOKENS, ignore_eos=True)
        for prompt in PROMPTS
    ]


def alone(prompt: list[int], n_tokens: int) -> tuple[int, ...]:
    """What one engine answers, in one process."""
    answer = lone_answer("float32", Probe(tuple(prompt), None, n_tokens), exact=False)
    return tuple(token.token_id for token in answer)


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    return [alone(prompt, N_TOKENS) for prompt in PROMPTS]


@dataclass(frozen=True)
class Sides:
    """A cluster, the ranks of its two workers, their transport, and the tokens of their pages."""

    cluster: LocalCluster
    ranks: dict[str, int]
    transport: str
    page_tokens: tuple[int, int]


@pytest.fixture(
    scope="module",
    params=[*QUICK, *(pytest.param(values, marks=pytest.mark.soak) for values in SOAK)],
    ids=lambda values: "-".join(map(str, values[:3])),
)
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    p, d, transport, page_tokens = request.param
    pools = [
        f"  - {{role: {role}, tensor_parallel: {n}, page_tokens: {size}}}"
        for role, n, size in zip(("prefill", "decode"), (p, d), page_tokens, strict=True)
    ]
    file = tmp_path_factory.mktemp("sides") / "t.yaml"
    file.write_text("\n".join([WORKERS, "pools:", *pools, ""]))
    with start_local(
        topology=file, launcher="process", transport=[transport], **PATIENT
    ) as cluster:
        yield Sides(cluster, {"prefill-0": p, "decode-0": d}, transport, page_tokens)


@pytest.mark.timeout(180)
async def test_answers_do_not_depend_on_the_ranks_and_pages_of_either_side(
    sides: Sides, expected: list[tuple[int, ...]]
) -> None:
    with sides.cluster.client() as client:
        found = completions(client)
    assert [completion.token_ids for completion in found] == expected
    for n, completion in zip(LENGTHS, found, strict=True):
        assert completion.ledger.attempts == 1
        assert completion.ledger.transfer_pages == -(-n // sides.page_tokens[1])
    status = await settled(sides.cluster, 2)
    seen = {w.worker_id: (len(w.devices), w.transports[0].transport) for w in status.workers}
    assert seen == {name: (n, sides.transport) for name, n in sides.ranks.items()}


def has_ended(process: psutil.Process) -> bool:
    return not is_alive(process)


@pytest.mark.timeout(180)
def test_a_rank_that_dies_takes_its_worker_and_no_answer(
    sides: Sides, expected: list[tuple[int, ...]]
) -> None:
    """Of the side that has several. Last, as the worker that comes back has another epoch."""
    cluster = sides.cluster
    prompt = prompt_of(5, 300)
    whole = alone(prompt, N_TOKENS_AMID_DEATH)
    with cluster.client() as client:
        for victim in (name for name, n in sides.ranks.items() if n > 1):
            ranks = psutil.Process(cluster.pid(victim)).children()
            assert len(ranks) == sides.ranks[victim]
            after = len(cluster.events)
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(
                    client.generate, token_ids=prompt, temperature=0, ignore_eos=True,
                    max_tokens=N_TOKENS_AMID_DEATH,
                )  # fmt: skip
                time.sleep(0.4)
                ranks[1].kill()
                assert answer.result().token_ids == whole
            cluster.wait_for("died", victim, after=after, timeout_s=60)
            for rank in ranks:
                wait_until(partial(has_ended, rank), "its other ranks end too")
            cluster.wait_for("started", victim, after=after, timeout_s=120)
        assert [completion.token_ids for completion in completions(client)] == expected
