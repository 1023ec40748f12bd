"""Requests through the whole protocol under virtual time: calm, crowded, short of pages, dying."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from twolane.deploy.virtual_cluster.cluster import (
    Shape,
    VirtualCluster,
    make_fake_engine,
    virtual_cluster,
)
from twolane.deploy.virtual_cluster.random_faults import kill_and_reset
from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.errors import InvalidRequestError, TwolaneError
from twolane.kvtransfer.testing.memory import Faults
from twolane.params import SamplingParams
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1.inference_pb2 import Token

Scene = Callable[[VirtualCluster], Awaitable[None]]
Job = tuple[list[int], SamplingParams]


def play(shape: Shape, scene: Scene, seed: int = 0) -> None:
    async def main() -> None:
        async with virtual_cluster(shape, seed) as cluster:
            await scene(cluster)

    with virtual_time_runner(seed) as runner:
        runner.run(main())


AHEAD = pytest.mark.parametrize("steps_ahead", [0, 1])


def make_jobs(n: int, seed: int, *, most_tokens: int = 60) -> list[Job]:
    source = random.Random(seed)
    return [
        (
            [source.randrange(256) for _ in range(source.choice([1, 5, 16, 17, 100, 300]))],
            SamplingParams(max_tokens=source.randint(1, most_tokens), seed=source.randrange(99)),
        )
        for _ in range(n)
    ]


def expected(job: Job) -> list[int]:
    prompt, params = job
    return expected_answer(prompt, params, params.max_tokens or 0)


def ids(tokens: list[Token]) -> list[int]:
    return [token.token_id for token in tokens]


async def ask_all(cluster: VirtualCluster, jobs: list[Job]) -> None:
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(cluster.ask(prompt, params)) for prompt, params in jobs]
    for task, job in zip(asked, jobs, strict=True):
        assert ids(task.result()) == expected(job)


@pytest.mark.parametrize(
    "roles", [("p", "d"), ("p", "p", "d", "d"), ("pd",), ("pd", "pd"), ("pd", "p", "d")]
)
@pytest.mark.parametrize("sender_writes", [False, True])
@AHEAD
def test_every_topology_answers_a_crowd_and_gives_every_page_back(
    roles: tuple[str, ...], sender_writes: bool, steps_ahead: int
) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await ask_all(cluster, make_jobs(32, seed=1))
        await cluster.settle()

    play(Shape(roles=roles, sender_writes=sender_writes, steps_ahead=steps_ahead), scene)


@pytest.mark.parametrize("roles", [("p", "d"), ("pd",)])
@AHEAD
def test_a_crowd_that_outgrows_the_pool_is_preempted_and_still_answered(
    roles: tuple[str, ...], steps_ahead: int
) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await ask_all(cluster, make_jobs(24, seed=2, most_tokens=200))
        await cluster.settle()

    play(Shape(roles=roles, n_pages=40, steps_ahead=steps_ahead), scene)


def test_answers_without_max_tokens_that_are_preempted_do_not_wait_for_an_empty_pool() -> None:
    """They end by themselves after 100 tokens or so, of the 1,000 that they may have."""

    def engine(n_pages: int) -> FakeEngine:
        config = FakeEngineConfig(n_pages=n_pages, eos_token_ids=(2,), eos_every_tokens=100)
        return FakeEngine(config)

    async def scene(cluster: VirtualCluster, most_tokens: int | None, took_s: list[float]) -> None:
        source, clock = random.Random(5), asyncio.get_running_loop().time
        jobs = [
            (
                [source.randrange(3, 256) for _ in range(40)],
                SamplingParams(max_tokens=most_tokens, seed=n),
            )
            for n in range(32)
        ]
        begun = clock()
        outcomes = await asyncio.gather(*(cluster.outcome(*job) for job in jobs))
        took_s.append(clock() - begun)
        assert sum(one.ledger.attempts for one in outcomes) > len(jobs), "none was preempted"
        await cluster.settle()

    took_s: list[float] = []
    for most_tokens in (200, None):
        shape = Shape(roles=("p", "d"), n_pages=64, make_engine=engine)
        play(shape, partial(scene, most_tokens=most_tokens, took_s=took_s))
    assert took_s[1] < 1.3 * took_s[0], took_s


def test_lossy_corrupting_transfers_cost_attempts_and_never_a_token() -> None:
    faults = Faults(drop=0.02, duplicate=0.05, corrupt=0.02, delay_s=(0.0, 0.05))

    async def scene(cluster: VirtualCluster) -> None:
        await ask_all(cluster, make_jobs(40, seed=3))
        await cluster.settle(within_s=10.0)

    play(Shape(roles=("p", "p", "d", "d"), transfer_faults=faults), scene)


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 16))]


@pytest.mark.parametrize("seed", SEEDS)
@AHEAD
def test_workers_that_die_and_return_at_random_cost_no_token(seed: int, steps_ahead: int) -> None:
    async def client(cluster: VirtualCluster, jobs: list[Job]) -> None:
        for job in jobs:
            assert ids(await cluster.ask(*job)) == expected(job)

    async def scene(cluster: VirtualCluster) -> None:
        jobs = make_jobs(48, seed=seed, most_tokens=200)
        faults = asyncio.create_task(kill_and_reset(cluster))
        async with asyncio.TaskGroup() as clients:
            for number in range(12):
                clients.create_task(client(cluster, jobs[number::12]))
        assert not faults.done()
        faults.cancel()
        assert cluster.kills >= 2
        await cluster.settle(within_s=10.0)

    shape = Shape(roles=("p", "p", "d", "d"), sender_writes=bool(seed % 2), steps_ahead=steps_ahead)
    play(shape, scene, seed)


def test_streams_that_are_cut_at_random_cost_no_token_and_hardly_an_attempt() -> None:
    async def cut(cluster: VirtualCluster) -> None:
        while True:
            await asyncio.sleep(0.4)
            cluster.reset_streams(cluster.random.choice(sorted(cluster.lives)))

    async def scene(cluster: VirtualCluster) -> None:
        cutting = asyncio.create_task(cut(cluster))
        for seed in range(10):
            await ask_all(cluster, make_jobs(30, seed=seed, most_tokens=200))
        assert cutting.cancel()
        counters = cluster.status().counters
        assert counters["finished"] == 300
        assert counters["attempts"] < 330
        await cluster.settle()

    play(Shape(roles=("p", "p", "d", "d")), scene)


@pytest.mark.parametrize("by_id", [False, True], ids=["leaves", "cancels"])
def test_a_client_that_gives_up_frees_everything_within_a_second(by_id: bool) -> None:
    """Each answer would take three seconds."""

    async def scene(cluster: VirtualCluster) -> None:
        source = random.Random(5)
        for n, (prompt, params) in enumerate(make_jobs(60, seed=5)):
            long = replace(params, max_tokens=1500)
            asked = asyncio.create_task(cluster.ask(prompt, long, request_id=f"r{n}"))
            await asyncio.sleep(source.uniform(0.001, 0.08))
            if by_id:
                assert cluster.router.cancel(f"r{n}")
            else:
                asked.cancel()
            await asyncio.wait([asked])
            await cluster.settle(within_s=1.0)
        counters = cluster.status().counters
        assert (counters["cancelled"], counters["finished"]) == (60, 0)

    play(Shape(), scene)


def test_a_request_larger_than_any_worker_is_refused_at_the_door() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            await cluster.ask([1] * 1500, SamplingParams(max_tokens=300))
        assert "pages" in str(caught.value)
        await ask_all(cluster, make_jobs(3, seed=6))

    play(Shape(n_pages=100), scene)


def test_with_every_worker_gone_each_request_gets_a_typed_error() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        jobs = make_jobs(8, seed=7, most_tokens=400)
        asked = [asyncio.create_task(cluster.ask(prompt, params)) for prompt, params in jobs]
        await asyncio.sleep(0.03)
        for name in list(cluster.lives):
            await cluster.kill(name)
        done, waiting = await asyncio.wait(asked, timeout=120)
        assert not waiting
        assert any(isinstance(task.exception(), TwolaneError) for task in done)
        for task in done:
            assert task.exception() is None or isinstance(task.exception(), TwolaneError)

    play(Shape(), scene)


def make_wide_engine(n_pages: int) -> FakeEngine:
    """As large as `make_fake_engine`'s, in fewer, larger pages."""
    return FakeEngine(FakeEngineConfig(n_pages=n_pages // 4, page_tokens=64))


@pytest.mark.parametrize("decode_is_wide", [True, False])
def test_workers_of_unequal_page_sizes_lose_nothing_when_they_die(decode_is_wide: bool) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        faults = asyncio.create_task(kill_and_reset(cluster))
        await ask_all(cluster, make_jobs(60, seed=3))
        faults.cancel()
        assert cluster.kills >= 2
        await cluster.settle(within_s=10.0)

    shape = Shape(
        roles=("p", "p", "d", "d"),
        transfer_faults=Faults(drop=0.01, duplicate=0.01, corrupt=0.01, delay_s=(0.0, 0.01)),
        make_engine=make_fake_engine if decode_is_wide else make_wide_engine,
        make_decode_engine=make_wide_engine if decode_is_wide else make_fake_engine,
    )
    play(shape, scene)


@pytest.mark.parametrize("sender_writes", [False, True])
def test_transfers_that_are_stuck_arrive_elsewhere_within_the_deadline(
    sender_writes: bool,
) -> None:
    """Bytes to one of two decode workers do not move, though it is alive and answers."""

    async def scene(cluster: VirtualCluster) -> None:
        cluster.stalled.add("d2")
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.timeout(20.0):
            await ask_all(cluster, make_jobs(12, seed=5, most_tokens=10))
        assert loop.time() - started > 3.0, "nobody was stuck"
        assert cluster.router.status().counters["retargets"] >= 1
        cluster.outlets["p0", "d2"].resume()  # what was being written is over
        await cluster.settle(within_s=20.0)

    play(Shape(roles=("p", "d", "d"), sender_writes=sender_writes), scene)
