"""No wait without a way out: what stands still is noticed, and the request goes on elsewhere.

Every test states the bound that no request outlives, in seconds of virtual time.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.cluster.waiting import answer, answers, play, resumes
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.kvtransfer.testing.memory import Faults
from twolane.router.config import DispatchConfig

LONG = (3000,) * 6  # more than a prefill worker computes at once: some wait in its queue


def test_dial_that_fails_while_rows_wait_for_their_turn_costs_no_attempt() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.dials_to_fail["d2"] = 2
        outcomes = await answers(cluster, LONG)
        assert max(o.took_s for o in outcomes) < 1.0
        assert not resumes(cluster)

    play(Shape(roles=("p", "d", "d"), n_pages=2048), scene)


def test_stream_that_is_reset_while_rows_wait_for_their_turn_costs_no_attempt() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        asked = asyncio.create_task(answers(cluster, LONG))
        await asyncio.sleep(0.02)
        cluster.reset_streams("d2")
        outcomes = await asked
        assert max(o.took_s for o in outcomes) < 1.0
        assert not resumes(cluster)

    play(Shape(roles=("p", "d", "d"), n_pages=2048), scene)


@pytest.mark.parametrize("n_failures", [1, 3])
def test_transport_that_fails_to_open_costs_a_moment_and_not_the_pair(n_failures: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.opens_to_fail["d1"] = n_failures
        outcomes = await answers(cluster, (20,) * 60, every_s=0.1)
        assert max(o.took_s for o in outcomes) < 2.0
        late = outcomes[30:]
        assert all(o.ledger.attempts == 1 for o in late)
        await cluster.settle()

    play(Shape(dispatch=DispatchConfig()), scene)


def test_pair_without_a_transport_sends_its_requests_elsewhere() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.opens_to_fail["d1"] = 1_000_000
        outcomes = await answers(cluster, (20,) * 20, every_s=0.1)
        assert max(o.took_s for o in outcomes) < 2.0
        assert {o.ledger.decode_worker for o in outcomes} == {"d2"}

    play(Shape(roles=("p", "d", "d"), dispatch=DispatchConfig()), scene)


def test_prefill_worker_that_can_open_nothing_costs_two_attempts_and_no_request() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.opens_to_fail["p0"] = 1_000_000
        outcomes = await answers(cluster, (20,) * 20, every_s=0.1)
        assert max(o.took_s for o in outcomes) < 2.0
        assert {o.ledger.prefill_worker for o in outcomes} == {"p1"}
        assert max(o.ledger.attempts for o in outcomes) <= 3

    play(Shape(roles=("p", "p", "d", "d"), dispatch=DispatchConfig()), scene)


MIXED = Shape(roles=("pd", "pd", "p"), dispatch=DispatchConfig())


@pytest.fixture(params=[True, False], ids=["foreseen", "unforeseen"])
def foresight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the router counts the pages that prompts hold where they are computed. It cannot
    count those of other routers: then workers have to find a way out themselves."""
    if not request.param:
        monkeypatch.setattr(
            "twolane.router.dispatch.placing._pages_at_prefill", lambda placement, n_tokens: 0
        )


@pytest.mark.usefixtures("foresight")
def test_two_workers_that_each_hold_a_prompt_for_the_other_go_on_within_seconds() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        outcomes = await answers(cluster, (1000, 2000, 2100))
        assert max(o.took_s for o in outcomes) < 10.0
        await cluster.settle()

    play(MIXED, scene)


@pytest.mark.usefixtures("foresight")
@pytest.mark.parametrize(
    "draw", [*range(6), *(pytest.param(n, marks=pytest.mark.soak) for n in range(6, 40))]
)
def test_prompts_of_any_sizes_go_through_mixed_pools_within_seconds(draw: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        source = random.Random(draw)
        outcomes = await answers(cluster, [source.randrange(200, 2500) for _ in range(8)])
        assert max(o.took_s for o in outcomes) < 20.0
        await cluster.settle()

    play(MIXED, scene)


@pytest.mark.usefixtures("foresight")
@pytest.mark.parametrize("other", [1500, 2200])
def test_small_request_does_not_wait_behind_large_ones_that_hold_each_others_pages(
    other: int,
) -> None:
    sizes = iter((256, 256, 16))

    def make_engine(n_pages: int) -> FakeEngine:
        return FakeEngine(FakeEngineConfig(n_pages=next(sizes)))

    async def scene(cluster: VirtualCluster) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(answer(cluster, 16, 40, seed=1))
            large = [
                tasks.create_task(answer(cluster, n, 8, seed=n, after_s=0.02))
                for n in (2000, other)
            ]
            small = tasks.create_task(answer(cluster, 40, 8, seed=2, after_s=0.3))
        assert small.result().took_s < 1.0
        assert max(task.result().took_s for task in large) < 10.0
        await cluster.settle()

    play(Shape(roles=MIXED.roles, make_engine=make_engine, dispatch=DispatchConfig()), scene)


def test_slow_link_on_which_bytes_move_carries_its_pages_at_the_first_try() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        outcome = await answer(cluster, 1500, 8, seed=1)  # one post, and it takes five seconds
        assert 5.0 < outcome.took_s < 15.0
        assert outcome.ledger.attempts == 1

    slow = Faults(delay_s=(0.1, 2.8))  # of each hop of a page, side by side
    shape = Shape(sender_writes=True, transfer_faults=slow, dispatch=DispatchConfig())
    play(shape, scene)


def test_rows_whose_grants_were_withdrawn_keep_nobody_out_of_the_batch() -> None:
    """Two stuck rows hold no place in a batch of two while a more urgent one waits before them."""

    async def scene(cluster: VirtualCluster) -> None:
        cluster.stall("d1")
        stuck = [asyncio.create_task(answer(cluster, n, 8, seed=n)) for n in (300, 60)]
        await asyncio.sleep(0.2)
        urgent = asyncio.create_task(answer(cluster, 16, 8, seed=1, priority=5))
        await asyncio.sleep(4.0)
        cluster.resume("d1")
        async with asyncio.timeout(10.0):
            await asyncio.gather(urgent, *stuck)
        await cluster.settle()

    play(Shape(n_pages=64, decode_rows=2), scene)
