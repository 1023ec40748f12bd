"""One worker with both roles: chunked prefill beside decode, rows handed over by hand."""

from __future__ import annotations

import asyncio

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.params import SamplingParams
from twolane.v1 import sampling_pb2, worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.testing import DECODE, PREFILL


def params(max_tokens: int = 20) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=7)


def prompt(n: int, salt: int = 0) -> list[int]:
    return [(i * 31 + salt * 17 + 5) % 251 for i in range(n)]


def test_answer_is_the_engines_and_every_page_comes_back(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        a = AttemptId("r", 1)
        town.router.assign(a, prompt(300), prefill=worker, decode=worker, params=params())
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(a))
        assert town.router.answer(a) == expected_answer(prompt(300), params(), 20)
        assert town.router.finish_of(a) == sampling_pb2.FINISH_REASON_LENGTH
        assert town.router.kinds(a, PREFILL) == ["HANDED_OVER"]
        assert town.router.kinds(a, DECODE) == ["JOINED", "FINISHED"]
        await town.settle(0.1)

    play(scene)


def test_crowd_of_all_lengths_gets_every_answer(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", limits=StepLimits(step_tokens=64, decode_rows=8))
        attempts = {AttemptId(f"r{i}", 1): prompt(1 + 13 * i, salt=i) for i in range(24)}
        for a, tokens in attempts.items():
            town.router.assign(a, tokens, prefill=worker, decode=worker, params=params())
        await town.router.wait_for(lambda: all(town.router.finish_of(a) for a in attempts))
        for a, tokens in attempts.items():
            assert town.router.answer(a) == expected_answer(tokens, params(), 20)
        await town.settle(0.1)

    play(scene)


def test_decode_goes_on_while_a_long_prompt_is_read(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", limits=StepLimits(step_tokens=32, decode_rows=8))
        short, long = AttemptId("short", 1), AttemptId("long", 1)
        town.router.assign(
            short, prompt(8), prefill=worker, decode=worker, params=params(max_tokens=40)
        )
        await town.router.wait_for(lambda: len(town.router.tokens[short]) >= 3)
        town.router.assign(long, prompt(900), prefill=worker, decode=worker, params=params())
        before = len(town.router.tokens[short])
        await town.router.wait_for(lambda: bool(town.router.tokens[long]))
        meanwhile = len(town.router.tokens[short]) - before
        assert meanwhile >= 25, "900 tokens in steps of 32: decode had a turn in each"
        await town.router.wait_for(lambda: bool(town.router.finish_of(long)))
        await town.settle(0.1)

    play(scene)


def test_tiny_pool_preempts_but_never_deadlocks(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", engine=FakeEngineConfig(n_pages=12))
        jobs = {f"r{i}": prompt(20, salt=i) for i in range(8)}
        crowd = town.crowd(jobs, params(60), prefill=worker, decode=worker, growth_tokens=1)
        await crowd.run()
        assert crowd.n_resumes > 0, "the pool was too large for this test"
        for name, tokens in jobs.items():
            assert crowd.answers[name] == expected_answer(tokens, params(), 60)
        await town.settle(0.1)

    play(scene)


def test_row_that_can_never_fit_is_refused(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", engine=FakeEngineConfig(n_pages=4))
        a = AttemptId("r", 1)
        town.router.assign(a, prompt(40), prefill=worker, decode=worker, params=params(100))
        await town.router.wait_for(lambda: "REFUSED" in town.router.kinds(a))
        assert town.router.rows[a][0].reason == "too_large"

    play(scene)


def test_higher_priority_goes_first_and_equals_in_order_of_arrival(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        limits = StepLimits(step_tokens=32, decode_rows=8)
        worker = town.add("w", "pd", limits=limits)
        priorities = {"first": 0, "low": -1, "second": 0, "high": 5}
        town.router.assign(
            AttemptId("block", 1), prompt(320, 99), prefill=worker, decode=worker, params=params()
        )
        await asyncio.sleep(0.01)  # it has started; all others find it there
        for salt, (name, priority) in enumerate(priorities.items()):
            town.router.assign(
                AttemptId(name, 1),
                prompt(60, salt),
                prefill=worker,
                decode=worker,
                params=params(),
                priority=priority,
            )
        await town.router.wait_for(lambda: len(town.router.tokens) == 5)
        order = [attempt.submission_id for attempt in town.router.tokens]
        assert order == ["block", "high", "first", "second", "low"]

    play(scene)


def test_head_of_the_queue_is_not_overtaken_by_a_smaller_row(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        limits = StepLimits(step_tokens=512, decode_rows=8)
        worker = town.add("w", "pd", engine=FakeEngineConfig(n_pages=20), limits=limits)
        running, large, small = (
            AttemptId("running", 1),
            AttemptId("large", 1),
            AttemptId("small", 1),
        )
        for attempt, n in ((running, 160), (large, 200), (small, 16)):
            tokens = prompt(n, salt=n)  # no prefix of another
            town.router.assign(attempt, tokens, prefill=worker, decode=worker, params=params())
            await town.router.wait_for(lambda: bool(town.router.tokens[running]))
        await town.router.wait_for(lambda: bool(town.router.tokens[small]))
        assert town.router.finish_of(running), "there is no room for the large one before"
        assert town.router.tokens[large]
        await town.router.wait_for(lambda: bool(town.router.finish_of(large)))
        await town.settle(0.2)

    play(scene)


def test_cancel_at_any_moment_frees_everything(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", limits=StepLimits(step_tokens=32, decode_rows=8))
        for i in range(60):
            a = AttemptId(f"r{i}", 1)
            town.router.assign(
                a, prompt(100, salt=i), prefill=worker, decode=worker, params=params(60)
            )
            await asyncio.sleep(0.002 * i)
            town.router.cancel(a, worker)
            await town.router.wait_for_kind(a, "FINISHED")
            await town.settle(0.01)

    play(scene)


def test_prompt_that_is_cached_computes_one_page_at_most(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        first, second = AttemptId("a", 1), AttemptId("b", 1)
        for a in (first, second):
            town.router.assign(a, prompt(160), prefill=worker, decode=worker, params=params())
            await town.router.wait_for_kind(a, "FINISHED")
        cached = [
            event.figures.cached_tokens
            for a in (first, second)
            for event in town.router.rows[a]
            if event.kind == worker_pb2.RowEvent.KIND_HANDED_OVER
        ]
        assert cached == [0, 144]  # the last page is computed again: its last token is sampled from
        assert town.router.answer(first) == town.router.answer(second)
        await town.settle(0.1)

    play(scene)


def test_first_token_that_ends_the_answer_is_never_handed_over(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        a = AttemptId("r", 1)
        town.router.assign(a, prompt(30), prefill=worker, decode=worker, params=params(1))
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(a))
        assert town.router.kinds(a, DECODE) == []
        assert town.router.finish_of(a) == sampling_pb2.FINISH_REASON_LENGTH
        await town.settle(0.1)

    play(scene)
