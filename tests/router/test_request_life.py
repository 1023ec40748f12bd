"""The life of a request on scripted workers, under virtual time, with nothing going wrong."""

import asyncio
from typing import Any

import pytest

from twolane.errors import CancelledError, DeadlineError, DuplicateRequestError
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.v1 import sampling_pb2

PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize("workers", [("p0", "d0"), ("b0",), ("p0", "p1", "d0", "d1")])
def test_answer_is_the_workers_tokens_in_order_and_ends_with_a_ledger(workers: Any) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT, max_tokens=20))
        assert outcome.error is None
        assert outcome.tokens == expected_answer(PROMPT, 20)
        assert outcome.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
        assert outcome.ledger.prompt_tokens == 4
        assert outcome.ledger.output_tokens == 20
        assert outcome.ledger.attempts == 1
        assert outcome.ledger.decode_s == 0.5
        assert 0.02 < outcome.ledger.ttft_s < 0.03
        assert 0.2 < outcome.ledger.total_s < 0.3
        if len(workers) > 1:
            assert outcome.ledger.prefill_s == 0.25
            assert outcome.ledger.transfer_pages == 2
            assert outcome.ledger.prefill_worker[0] == "p"
            assert outcome.ledger.decode_worker[0] == "d"

    play(script, workers)


def test_first_response_tells_id_and_seed_before_any_token() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT, request_id="mine", seed=77, max_tokens=2))
        assert outcome.first.request_id == "mine"
        assert outcome.first.seed == 77
        assert not outcome.first.tokens
        drawn = await ask(router, message(PROMPT, max_tokens=2))
        assert len(drawn.first.request_id) == 16
        assert drawn.first.seed > 0

    play(script)


def test_request_that_ends_with_its_first_token_never_reaches_decode() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT, max_tokens=1))
        assert outcome.tokens == expected_answer(PROMPT, 1)
        assert outcome.ledger.prefill_s == 0.25
        assert outcome.ledger.decode_s == 0
        stop = expected_answer(PROMPT, 1)
        outcome = await ask(router, message(PROMPT, max_tokens=9, stop_token_ids=stop))
        assert outcome.finish_reason == sampling_pb2.FINISH_REASON_STOP

    play(script)


def test_many_at_once_each_get_their_own_answer() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        prompts = [[1 + i, 2, 3] for i in range(200)]
        outcomes = await asyncio.gather(
            *(ask(router, message(prompt, max_tokens=12)) for prompt in prompts)
        )
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            assert outcome.error is None
            assert outcome.tokens == expected_answer(prompt, 12)

    play(script, ("p0", "d0", "d1"))


def test_id_in_use_is_refused_and_free_again_afterwards() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message(PROMPT, request_id="same", max_tokens=20)
        first = asyncio.create_task(ask(router, request))
        await asyncio.sleep(0.05)
        second = await ask(router, request)
        assert isinstance(second.error, DuplicateRequestError)
        assert (await first).tokens == expected_answer(PROMPT, 20)
        assert (await ask(router, request)).error is None

    play(script)


def test_id_of_a_finished_answer_can_be_used_again_while_its_client_still_reads() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        slow = router.generate(message([1, 2, 3], request_id="x", max_tokens=3))
        await anext(slow)
        await asyncio.sleep(2.0)  # the answer is complete meanwhile
        assert not router.status().requests
        second = asyncio.create_task(
            ask(router, message([4, 5, 6], request_id="x", max_tokens=400))
        )
        await asyncio.sleep(0.05)
        rest = [response async for response in slow]
        assert sum(len(response.tokens) for response in rest) == 3
        async with asyncio.timeout(30.0):
            outcome = await second
        assert outcome.error is None
        assert outcome.tokens == expected_answer([4, 5, 6], 400)

    play(script)


@pytest.mark.parametrize("at_s", [0.0001, 0.01, 0.025, 0.035, 0.1])
def test_cancel_by_id_frees_both_workers_within_a_second(at_s: Any) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        task = asyncio.create_task(ask(router, message(PROMPT, request_id="x", max_tokens=500)))
        await asyncio.sleep(at_s)
        assert router.cancel("x")
        outcome = await task
        assert isinstance(outcome.error, CancelledError)
        assert not router.cancel("x")

    play(script)


@pytest.mark.parametrize("n_tokens", [0, 1, 2, 7])
def test_client_that_leaves_frees_both_workers_within_a_second(n_tokens: Any) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT, max_tokens=500), leave_after=n_tokens)
        assert len(outcome.tokens) == n_tokens
        assert router.status().counters["cancelled"] == 1

    play(script)


def test_cancelled_task_frees_both_workers() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        task = asyncio.create_task(ask(router, message(PROMPT, max_tokens=500)))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(script)


def test_deadline_that_passes_ends_the_answer_after_what_was_streamed() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT, max_tokens=500), time_left_s=0.3)
        assert isinstance(outcome.error, DeadlineError)
        assert 10 < len(outcome.tokens) < 40
        assert outcome.ended_at < 0.5

    play(script)


def test_deadline_that_passed_before_is_refused_at_once() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, message(PROMPT), time_left_s=0.0)
        assert isinstance(outcome.error, DeadlineError)
        assert outcome.error.metadata["time_left_s"] == "0.000"
        assert not any(c.HasField("assign") for c in cluster.workers["p0"].commands)

    play(script)


def test_worker_is_told_the_time_that_is_left_and_the_whole_sampling() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        await ask(router, message(PROMPT, max_tokens=3), time_left_s=5.0)
        for worker_id in ("p0", "d0"):
            (assign,) = [
                c.assign for c in cluster.workers[worker_id].commands if c.HasField("assign")
            ]
            assert 4900 < assign.time_left_ms <= 5000
            assert assign.sampling.HasField("seed")
            assert assign.sampling.top_p == 1.0
            assert assign.n_prompt == 4
            assert assign.prefill.worker_id == "p0"
            assert assign.decode.worker_id == "d0"
            assert assign.growth_tokens == 3

    play(script)


def test_running_request_can_be_looked_at() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        task = asyncio.create_task(
            ask(router, message(PROMPT, request_id="x", max_tokens=50, priority=3))
        )
        await asyncio.sleep(0.2)
        (status,) = router.status().requests
        assert (status.request_id, status.state, status.attempt) == ("x", "running", 1)
        assert (status.prefill_worker, status.decode_worker) == ("p0", "d0")
        assert (status.prompt_tokens, status.priority) == (4, 3)
        assert 5 < status.output_tokens < 30
        assert router.status().requests_by_state == {"running": 1}
        await task
        assert router.status().counters["finished"] == 1

    play(script)
