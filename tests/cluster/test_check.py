"""A check of the live cluster compares every bit, names who is wrong, and is in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tests.cluster.test_exact_in_memory import make_engine
from twolane.deploy.virtual_cluster.cluster import (
    Shape,
    VirtualCluster,
    make_fake_engine,
    virtual_cluster,
)
from twolane.engine.step import RowResult, RowWork
from twolane.kvtransfer.layouts.sources import Source
from twolane.params import SamplingParams
from twolane.router.doors.admin.check import ask_pair
from twolane.router.members.member import Member
from twolane.router.operators.cluster_check import ClusterCheck, Outcome
from twolane.router.operators.comparison import make_prompts, prompt_lengths
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import admin_pb2, facts_pb2
from twolane.worker.doors.services import alone_response
from twolane.worker.steps.step_runner import TimedEngine

MAX_TOKENS = 12
TELL_S = 1.0  # an operator's connection is slow
Told = list[admin_pb2.CheckClusterResponse]


class FlippedBit:
    """Pages as they are read for one peer: a bit of each is wrong before checksums are made."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.page_bytes = source.page_bytes
        self.batch_pages = source.batch_pages

    def take(
        self, src: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        pool, pages = self._source.take(src)
        wrong = pool[pages].copy()
        wrong[:, wrong.shape[1] // 3] ^= 0x40
        return wrong, np.arange(len(pages))


def plant(cluster: VirtualCluster, sender: str, receiver: str) -> None:
    """From now on pages from the one to the other are wrong."""
    outlet = cluster._fabric.outlet
    epochs = [cluster.lives[name].worker.context.epoch for name in (sender, receiver)]

    def wrong_outlet(sender_epoch: int, source: Source, address: str) -> object:
        is_it = [sender_epoch, address] == [epochs[0], f"memory-{epochs[1]}"]
        return outlet(sender_epoch, FlippedBit(source) if is_it else source, address)

    cluster._fabric.outlet = wrong_outlet  # type: ignore[assignment, method-assign]


async def check(cluster: VirtualCluster, n_prompts: int = 2) -> tuple[Outcome, Told]:
    members = sorted(cluster.router.operations.members(), key=lambda its: its.worker_id)
    members.sort(key=lambda its: not its.prefills)
    told: Told = []

    async def ask_alone(
        member: Member, request: facts_pb2.AnswerAloneRequest
    ) -> facts_pb2.AnswerAloneResponse:
        worker = cluster.lives[member.worker_id].worker
        return alone_response(worker, await worker.answer_alone(request))

    telling = asyncio.Lock()

    async def tell(response: admin_pb2.CheckClusterResponse) -> None:
        assert not telling.locked(), "a stream takes one message at a time"
        async with telling:
            await asyncio.sleep(TELL_S)
        told.append(response)

    announce = members[0].announce
    lengths = prompt_lengths(n_prompts, [announce.page_tokens], 64)
    outcome = await ClusterCheck(
        members,
        [(p, d) for p in members for d in members if p.prefills and d.decodes and p is not d],
        make_prompts(lengths, announce.vocab_size, seed=1),
        MAX_TOKENS,
        ask_alone=ask_alone,
        ask_pair=partial(ask_pair, cluster.router, max_tokens=MAX_TOKENS),
        tell=tell,
    ).run()
    return outcome, told


def wrong(told: Told) -> set[tuple[str, str]]:
    return {(its.prefill_worker, its.decode_worker) for its in told if not its.equal}


def run(
    roles: str,
    make: Callable[[int], TimedEngine],
    after: Callable[[VirtualCluster], None] = lambda cluster: None,
) -> tuple[Outcome, Told]:
    async def main() -> tuple[Outcome, Told]:
        async with virtual_cluster(Shape(roles=roles, make_engine=make)) as cluster:
            after(cluster)
            found = await check(cluster)
            await cluster.settle(within_s=10.0)
            return found

    with virtual_time_runner() as runner:
        return runner.run(main())


def test_a_wrong_page_between_two_workers_names_just_that_pair() -> None:
    """With the real engine in exact mode: each prompt cold, then from the caches."""
    outcome, told = run("ppd", make_engine, lambda cluster: plant(cluster, "p1", "d2"))
    assert {(its.prefill_worker, its.decode_worker) for its in told} == {
        *((name, name) for name in ("p0", "p1", "d2")),
        *((p, "d2") for p in ("p0", "p1")),
    }
    assert not any(its.exactness or its.error for its in told)
    assert wrong(told) == {("p1", "d2")}
    assert outcome == Outcome(compared=5, different=1, failed=0)
    assert told[-1].left == 0
    right = next(its for its in told if (its.prefill_worker, its.decode_worker) == ("p0", "d2"))
    assert (right.prompts, right.tokens) == (4, 4 * MAX_TOKENS)
    its = next(its for its in told if not its.equal)
    assert its.differs_at >= 1, "the first token is the prefill worker's own"
    assert its.difference
    assert its.prompt_tokens in (32, 33)


def test_a_worker_whose_memory_is_bad_is_named_alone() -> None:
    def spoil(cluster: VirtualCluster) -> None:
        engine = cluster.lives["d3"].worker.context.engine
        run_engine = engine.run

        def spoiled(work: Sequence[RowWork]) -> list[RowResult]:
            engine.pool[:, engine.pool.shape[1] // 3] ^= 0x40
            return run_engine(work)

        engine.run = spoiled  # type: ignore[method-assign]

    _, told = run("ppdd", make_fake_engine, spoil)
    assert wrong(told) == {("d3", "d3"), ("p0", "d3"), ("p1", "d3")}


def test_an_engine_that_sees_a_wrong_page_itself_counts_as_a_difference() -> None:
    outcome, told = run("ppdd", make_fake_engine, lambda cluster: plant(cluster, "p0", "d3"))
    assert wrong(told) == {("p0", "d3")}
    assert outcome.different == 1
    assert "holds something else" in next(its.difference for its in told if not its.equal)


def test_answers_of_clients_are_the_same_and_no_page_is_left_after_a_check_that_is_called_off() -> (
    None
):
    async def main() -> None:
        async with virtual_cluster(Shape(roles=("p", "d"), n_pages=24)) as cluster:
            checking = asyncio.create_task(check(cluster))
            params = SamplingParams(max_tokens=30, seed=0)
            for turn in range(6):
                answer = await cluster.ask([turn + 1] * 40, params)
                assert len(answer) == 30
                if turn == 3:
                    checking.cancel()
            await asyncio.wait([checking])
            await cluster.settle(within_s=10.0)
            assert all(not life.worker.roles.check for life in cluster.lives.values())

    with virtual_time_runner() as runner:
        runner.run(main())
