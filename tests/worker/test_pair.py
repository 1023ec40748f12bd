"""A prefill worker and a decode worker, with the real transfer lane between them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.testing.memory import Faults
from twolane.params import SamplingParams
from twolane.testing.links import link_pair
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.testing import DECODE, PREFILL
from twolane.worker.worker import Worker

A = AttemptId("r", 1)
HANDED_OVER = worker_pb2.RowEvent.KIND_HANDED_OVER


def params(max_tokens: int = 20) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=7)


def prompt(n: int, salt: int = 0) -> list[int]:
    return [(i * 31 + salt * 17 + 5) % 251 for i in range(n)]


def start(
    town: WorkerCluster,
    p: Worker,
    d: Worker,
    *,
    n: int = 100,
    attempt: AttemptId = A,
    sampling: SamplingParams | None = None,
) -> None:
    town.router.assign(attempt, prompt(n), prefill=p, decode=d, params=sampling or params())


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100, 128, 300])
def test_answer_of_two_workers_is_the_engines_and_pages_come_back(play: Play, n: int) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d, n=n)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        assert town.router.answer(A) == expected_answer(prompt(n), params(), 20)
        assert town.router.kinds(A, PREFILL) == ["HANDED_OVER"]
        assert town.router.kinds(A, DECODE) == ["JOINED", "FINISHED"]
        assert p.inspect().transports == {"d": "memory"}
        await town.settle(0.2)

    play(scene)


def test_first_token_is_told_by_prefill_and_repeated_by_decode(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        told = [(event.index, event.role) for event in town.router.tokens[A]]
        assert told == [(0, PREFILL), *((i, DECODE) for i in range(20))]

    play(scene)


def test_figures_tell_where_the_time_went_and_what_was_moved(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d, n=100)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        by_kind = {event.kind: event.figures for event in town.router.rows[A]}
        handed = by_kind[worker_pb2.RowEvent.KIND_HANDED_OVER]
        done = by_kind[worker_pb2.RowEvent.KIND_FINISHED]
        assert (handed.transfer_pages, handed.transfer_bytes) == (7, 7 * p.context.spec.page_bytes)
        assert handed.prefill_s > 0
        assert handed.transfer_s > 0
        assert done.decode_s > 0
        assert (done.prefill_s, done.transfer_s) == (0, 0)

    play(scene)


def test_a_transfer_ends_with_its_commit_whatever_step_runs_then(play: Play) -> None:
    slow = FakeEngineConfig(n_pages=256, step_overhead_s=0.5)

    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", engine=slow), town.add("d", "d")
        start(town, p, d)
        await asyncio.sleep(0.1)
        other = AttemptId("other", 1)  # its step begins when the first row's is over
        start(town, p, d, attempt=other)
        begun = asyncio.get_running_loop().time()
        await town.router.wait_for_kind(A, "HANDED_OVER")
        assert asyncio.get_running_loop().time() > begun + 0.8, "the other step was not waited for"
        (handed,) = (event.figures for event in town.router.rows[A] if event.kind == HANDED_OVER)
        assert 0 < handed.transfer_s < 0.1
        await town.router.wait_for_kind(other, "FINISHED")

    play(scene)


def test_crowd_of_all_lengths_gets_every_answer(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        jobs = {f"r{i}": prompt(1 + 13 * i, salt=i) for i in range(24)}
        crowd = town.crowd(jobs, params(), prefill=p, decode=d)
        await crowd.run()
        for name, tokens in jobs.items():
            assert crowd.answers[name] == expected_answer(tokens, params(), 20)
        assert crowd.n_resumes == 0
        await town.settle(0.2)

    play(scene)


def test_pages_of_a_long_prompt_move_while_it_is_computed(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", limits=StepLimits(step_tokens=32, decode_rows=8))
        d = town.add("d", "d")
        start(town, p, d, n=900)
        await town.router.wait_for(lambda: bool(town.router.tokens[A]))
        landed = {
            page for page in range(d.context.spec.n_pages) if d.context.engine.pool[page].any()
        }
        assert len(landed) >= 50, "of 57; the last chunk cannot be there yet"

    play(scene)


def test_first_token_that_ends_the_answer_is_not_sent(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start(town, p, d, sampling=params(1))
        await town.router.wait_for(lambda: len(town.router.kinds(A)) == 2)
        assert town.router.kinds(A, PREFILL) == ["FINISHED"]
        assert town.router.kinds(A, DECODE) == ["FINISHED"]
        assert town.router.finish_of(A) == sampling_pb2.FINISH_REASON_LENGTH
        await town.settle(0.2)

    play(scene)


def test_second_time_nothing_but_the_last_page_is_computed_or_moved(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        figures = []
        for attempt in (AttemptId("a", 1), AttemptId("b", 1)):
            start(town, p, d, n=150, attempt=attempt)
            await town.router.wait_for_kind(attempt, "FINISHED")
            handed_over = worker_pb2.RowEvent.KIND_HANDED_OVER
            figures += [e.figures for e in town.router.rows[attempt] if e.kind == handed_over]
            assert town.router.answer(attempt) == expected_answer(prompt(150), params(), 20)
        assert [f.cached_tokens for f in figures] == [0, 144]
        assert [f.transfer_pages for f in figures] == [10, 1]
        await town.settle(0.2)

    play(scene)


def test_cancel_at_any_moment_frees_both_sides(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", limits=StepLimits(step_tokens=32, decode_rows=8))
        d = town.add("d", "d")
        for i in range(60):
            attempt = AttemptId(f"r{i}", 1)
            town.router.assign(attempt, prompt(100, salt=i), prefill=p, decode=d, params=params(60))
            await asyncio.sleep(0.001 * i)
            town.router.cancel(attempt, p, d)
            await town.settle(0.2)

    play(scene)


def test_cancel_told_to_prefill_alone_frees_decode_too(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", limits=StepLimits(step_tokens=32, decode_rows=8))
        d = town.add("d", "d")
        start(town, p, d, n=500)
        await asyncio.sleep(0.03)
        town.router.cancel(A, p)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, DECODE))
        await town.settle(0.2)

    play(scene)


def test_cancel_told_to_decode_alone_frees_prefill_too(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", limits=StepLimits(step_tokens=32, decode_rows=8))
        d = town.add("d", "d")
        start(town, p, d, n=500)
        await asyncio.sleep(0.03)
        town.router.cancel(A, d)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, PREFILL), within_s=0.5)
        await town.settle(0.2)

    play(scene)


def test_freed_slot_is_granted_at_once(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        one_row = StepLimits(step_tokens=128, decode_rows=1)
        rarely = LeaseConfig(lease_s=9.0, heartbeat_s=3.0, retry_first_s=2.0, retry_most_s=2.0)
        p = town.add("p", "p", lease=rarely)
        d = town.add("d", "d", lease=rarely, limits=one_row)
        attempts = [AttemptId(f"r{i}", 1) for i in range(6)]
        for attempt in attempts:
            start(town, p, d, attempt=attempt)
        for ended, following in pairwise(attempts):
            await town.router.wait_for_kind(ended, "FINISHED")
            await town.router.wait_for_kind(following, "JOINED", within_s=0.015)
        await town.settle(0.2)

    play(scene)


def test_tiny_pools_preempt_but_never_deadlock(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        engine = FakeEngineConfig(n_pages=12)
        p, d = town.add("p", "p", engine=engine), town.add("d", "d", engine=engine)
        jobs = {f"r{i}": prompt(20, salt=i) for i in range(8)}
        crowd = town.crowd(jobs, params(60), prefill=p, decode=d, growth_tokens=1)
        await crowd.run()
        assert crowd.n_resumes > 0, "the pool was too large for this test"
        for name, tokens in jobs.items():
            assert crowd.answers[name] == expected_answer(tokens, params(), 60)
        await town.settle(0.2)

    play(scene)


def test_reserved_growth_is_never_preempted(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        engine = FakeEngineConfig(n_pages=24)
        p, d = town.add("p", "p"), town.add("d", "d", engine=engine)
        jobs = {f"r{i}": prompt(20, salt=i) for i in range(12)}
        crowd = town.crowd(jobs, params(60), prefill=p, decode=d)
        await crowd.run()
        assert crowd.n_resumes == 0
        for name, tokens in jobs.items():
            assert crowd.answers[name] == expected_answer(tokens, params(), 60)
        await town.settle(0.2)

    play(scene)


def test_row_that_can_never_fit_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p")
        d = town.add("d", "d", engine=FakeEngineConfig(n_pages=4))
        start(town, p, d, n=40, sampling=params(100))
        await town.router.wait_for(lambda: "REFUSED" in town.router.kinds(A, DECODE))
        assert town.router.rows[A][0].reason == "too_large"
        # Soon: it does not wait for its lease, it is told.
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, PREFILL), within_s=0.5)
        await town.settle(0.5)

    play(scene)


def test_workers_of_different_models_refuse_each_other_naming_the_field(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", engine=FakeEngineConfig(model="one"))
        d = town.add("d", "d", engine=FakeEngineConfig(model="two"))
        start(town, p, d)
        await town.router.wait_for(lambda: "DEAD" in town.router.kinds(A, PREFILL))
        dead = [e for e in town.router.rows[A] if e.kind == worker_pb2.RowEvent.KIND_DEAD]
        assert dead[0].reason == "fingerprint"
        town.router.cancel(A, p, d)
        await town.settle(3.0)

    play(scene)


@pytest.mark.parametrize(
    "faults",
    [
        Faults(corrupt=0.05),
        Faults(duplicate=0.2),
        Faults(drop=0.02),
        Faults(delay_s=(0.0, 0.2)),
    ],
    ids=["corrupt", "duplicate", "drop", "late"],
)
def test_faulty_transport_changes_no_answer(play: Play, faults: Faults) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        jobs = {f"r{i}": prompt(1 + 23 * i, salt=i) for i in range(10)}
        crowd = town.crowd(jobs, params(), prefill=p, decode=d)
        await crowd.run()
        for name, tokens in jobs.items():
            assert crowd.answers[name] == expected_answer(tokens, params(), 20)
        await town.settle(5.0)

    play(scene, faults=faults)


def test_worker_without_a_decode_role_says_so_to_a_peer(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("p", "p")
        _, there = link_pair()
        assert not await worker.serve_peer(there)

    play(scene)
