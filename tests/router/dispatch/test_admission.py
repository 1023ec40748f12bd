"""Who waits, who is refused, who goes first."""

import asyncio
from typing import Any

import pytest

from twolane.errors import (
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
    UnknownModelError,
)
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.dispatch.drain_rate import DrainRate
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer

PROMPT = [5, 6, 7, 8]


def limited(**admission: Any) -> RouterConfig:
    return RouterConfig(admission=AdmissionConfig(**admission))


def test_full_queue_is_refused_at_once_and_says_when_to_come_back() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [asyncio.create_task(ask(router, message([n, 2], max_tokens=30))) for n in range(5)]
        await asyncio.sleep(0.05)
        assert router.status().requests_by_state == {"running": 2, "queued": 3}
        started = asyncio.get_running_loop().time()
        outcome = await ask(router, message(PROMPT))
        assert isinstance(outcome.error, OverloadedError)
        assert outcome.ended_at == started
        assert outcome.error.retry_after_s > 0
        assert outcome.error.metadata == {"value": "3", "bound": "3"}
        assert router.status().counters["refused.queue_full"] == 1
        for n, task in enumerate(tasks):
            assert (await task).tokens == expected_answer([n, 2], 30)

    async def small(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=2)
        await asyncio.sleep(0.1)
        await script(router, cluster)

    play(small, ("p0",), config=limited(max_queued=3, extra_rows=0))


def test_retry_info_follows_the_observed_drain_rate() -> None:
    rate = DrainRate()
    assert rate.wait_s(10, 0.0) is None, "nothing seen says nothing"
    for n in range(41):
        rate.note(n * 0.05)
    assert rate.wait_s(10, 2.0) == pytest.approx(0.5, rel=0.05)
    assert rate.wait_s(10, 30.0) is None, "old news say nothing"


def test_higher_priority_goes_first_and_equal_ones_in_order_of_arrival() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        done = []

        async def one(name: str, priority: int) -> None:
            await ask(router, message([1, 2], request_id=name, priority=priority, max_tokens=5))
            done.append(name)

        tasks = []
        for name, priority in [("a", 0), ("b", 0), ("low", -5), ("c", 0), ("high", 9)]:
            tasks.append(asyncio.create_task(one(name, priority)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert done == ["a", "high", "b", "c", "low"]

    play(script, ("p0",), config=limited(extra_rows=0))


def test_preempted_request_goes_ahead_of_new_work_of_any_priority() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        worker = cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        worker.preempt_at["a"] = 5
        done = []

        async def one(name: str, priority: int) -> None:
            await ask(router, message([1, 2], request_id=name, priority=priority, max_tokens=9))
            done.append(name)

        tasks = [asyncio.create_task(one("a", 0))]
        await asyncio.sleep(0.02)
        tasks.append(asyncio.create_task(one("b", 50)))
        await asyncio.gather(*tasks)
        assert done == ["a", "b"]

    play(script, ("p0",), config=limited(extra_rows=0))


def test_pages_for_growth_are_kept_so_that_a_worker_is_never_promised_twice() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        # 6 pages of 16 tokens; each request takes 2: 20 tokens of prompt, 12 of growth
        worker = cluster.start_worker("d0", n_pages=6)
        await asyncio.sleep(0.1)
        prompts = [list(range(n, n + 20)) for n in range(1, 9)]
        tasks = [asyncio.create_task(ask(router, message(p, max_tokens=12))) for p in prompts]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, len(worker.rows))
            await asyncio.sleep(0.005)
        assert most == 3
        for prompt, task in zip(prompts, tasks, strict=True):
            assert task.result().tokens == expected_answer(prompt, 12)

    play(script, ("p0",), config=limited(growth_reserve_tokens=12))


def test_small_request_does_not_overtake_a_large_one_for_ever() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", n_pages=8)
        await asyncio.sleep(0.1)
        done = []

        async def one(name: str, n_prompt: int) -> None:
            prompt = list(range(1, 1 + n_prompt))
            await ask(router, message(prompt, request_id=name, max_tokens=8))
            done.append(name)

        tasks = []
        for name, size in [("s1", 30), ("large", 110), ("s2", 30), ("s3", 30), ("s4", 30)]:
            tasks.append(asyncio.create_task(one(name, size)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert done.index("large") == 1

    play(script, ("p0",))


def test_queued_request_keeps_its_deadline_and_can_be_cancelled() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        first = asyncio.create_task(ask(router, message(PROMPT, max_tokens=200)))
        await asyncio.sleep(0.01)
        late = asyncio.create_task(ask(router, message(PROMPT, max_tokens=2), time_left_s=0.5))
        gone = asyncio.create_task(ask(router, message(PROMPT, request_id="q", max_tokens=2)))
        await asyncio.sleep(0.01)
        assert router.cancel("q")
        assert not (await gone).tokens
        outcome = await late
        assert isinstance(outcome.error, DeadlineError)
        assert 0.5 <= outcome.ended_at - 0.21 < 0.6
        await first

    play(script, ("p0",), config=limited(extra_rows=0))


def test_deadline_far_shorter_than_the_queue_is_refused_at_the_door() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        tasks = [asyncio.create_task(ask(router, message([n], max_tokens=10))) for n in range(60)]
        await asyncio.sleep(1.5)
        outcome = await ask(router, message(PROMPT), time_left_s=0.2)
        assert isinstance(outcome.error, DeadlineError)
        assert float(outcome.error.metadata["estimated_wait_s"]) > 4 * 0.2
        # one that may just do it is let in
        task = asyncio.create_task(ask(router, message([1], max_tokens=1), time_left_s=30.0))
        assert (await task).error is None
        await asyncio.gather(*tasks)

    play(script, ("p0",), config=limited(extra_rows=0))


def test_no_room_for_too_long_is_overloaded_and_not_for_ever() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        first = asyncio.create_task(ask(router, message(PROMPT, max_tokens=400)))
        await asyncio.sleep(0.01)
        outcome = await ask(router, message(PROMPT))
        assert isinstance(outcome.error, OverloadedError)
        assert 2.0 < outcome.ended_at < 2.5
        await first

    play(script, ("p0",), config=limited(extra_rows=0, queue_timeout_s=2.0))


def test_request_larger_than_any_worker_is_refused_at_the_door_with_the_figures() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", n_pages=4)
        await asyncio.sleep(0.1)
        outcome = await ask(router, message(list(range(1, 41)), max_tokens=30))
        assert isinstance(outcome.error, InvalidRequestError)
        assert outcome.error.metadata == {"value": "5", "bound": "4"}
        assert "5 pages" in outcome.error.message
        fitting = await ask(router, message(list(range(1, 41)), max_tokens=24))
        assert fitting.error is None
        # unset, max_tokens is what fits
        clamped = await ask(router, message(list(range(1, 41))))
        assert len(clamped.tokens) == 24

    play(script, ("p0",))


def test_unknown_model_is_told_at_once_and_names_those_that_are_there() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message(PROMPT)
        request.model = "gpt"
        started = asyncio.get_running_loop().time()
        outcome = await ask(router, request)
        assert isinstance(outcome.error, UnknownModelError)
        assert "fake" in outcome.error.message
        assert outcome.ended_at == started

    play(script)


@pytest.mark.parametrize("model", ["", "fake"])
def test_request_waits_for_the_first_workers_but_not_for_ever(model: Any) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message(PROMPT, max_tokens=3)
        request.model = model
        outcome = await ask(router, request)
        assert isinstance(outcome.error, UnavailableError)
        assert 1.0 < outcome.ended_at < 1.4
        short = await ask(router, request, time_left_s=0.2)
        assert isinstance(short.error, DeadlineError)
        task = asyncio.create_task(ask(router, request))
        await asyncio.sleep(0.5)
        cluster.start_worker("p0")
        await asyncio.sleep(0.3)
        cluster.start_worker("d0")
        assert (await task).tokens == expected_answer(PROMPT, 3)

    play(script, (), config=limited(unavailable_after_s=1.0))


def test_draining_worker_finishes_what_it_has_and_gets_nothing_new() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        first = asyncio.create_task(ask(router, message(PROMPT, max_tokens=50)))
        await asyncio.sleep(0.1)
        assert router.status().requests[0].decode_worker == "d0"
        router.operations.drain("d0")
        await asyncio.sleep(0.01)
        assert cluster.workers["d0"].is_draining
        second = await ask(router, message(PROMPT, max_tokens=5))
        assert second.ledger.decode_worker == "d1"
        assert (await first).ledger.decode_worker == "d0"
        states = {w.worker.worker_id: w.state for w in router.status().workers}
        assert states["d0"] == "draining"
        router.operations.drain("d0", undo=True)
        router.operations.drain("d1")
        await asyncio.sleep(1.5)
        assert (await ask(router, message(PROMPT, max_tokens=5))).ledger.decode_worker == "d0"
        with pytest.raises(InvalidRequestError, match="no worker 'x'"):
            router.operations.drain("x")

    play(script, ("p0", "d0", "d1"))


@pytest.mark.parametrize(("worker_id", "role"), [("p0", "prefill"), ("d0", "decode")])
def test_request_whose_only_workers_are_draining_is_told_so(worker_id: str, role: str) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        router.operations.drain(worker_id)
        outcome = await ask(router, message(PROMPT))
        assert isinstance(outcome.error, UnavailableError)
        assert f"all {role} workers of fake are draining" in outcome.error.message

    play(script, ("p0", "d0"), config=limited(unavailable_after_s=1.0))


def test_router_that_stops_ends_every_answer_with_unavailable() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        router.stop_accepting()
        assert isinstance((await ask(router, message(PROMPT))).error, UnavailableError)
        assert not router.can_serve()

    play(script)


def test_workers_of_unequal_fingerprints_are_never_paired() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", fingerprint="f1")
        await asyncio.sleep(0.1)
        outcome = await ask(router, message(PROMPT))
        assert isinstance(outcome.error, UnavailableError)
        assert not cluster.workers["d0"].rows
        assert not router.can_serve()
        cluster.start_worker("d1", fingerprint="f0")
        await asyncio.sleep(0.1)
        assert router.can_serve()
        assert (await ask(router, message(PROMPT))).ledger.decode_worker == "d1"

    play(script, ("p0",), config=limited(unavailable_after_s=1.0))


def test_answer_that_no_prefill_worker_could_resume_is_refused_at_the_door() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("p0", n_pages=20)
        cluster.start_worker("d0", n_pages=100)
        await asyncio.sleep(0.1)
        refused = await ask(router, message([1] * 160, max_tokens=162))
        assert isinstance(refused.error, InvalidRequestError)
        assert "largest prefill worker of fake has 20" in refused.error.message

        cluster.workers["d0"].preempt_at["just"] = 160
        just = await ask(router, message([1] * 160, request_id="just", max_tokens=161))
        assert just.error is None
        assert just.tokens == expected_answer([1] * 160, 161)
        assert just.ledger.attempts == 2

    play(script, ())


def test_request_whose_only_fitting_worker_is_gone_fails_and_does_not_wait_for_the_queue() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("p0", n_pages=100)
        cluster.start_worker("p1", n_pages=5)
        cluster.start_worker("d0", n_pages=100)
        await asyncio.sleep(0.1)
        task = asyncio.create_task(ask(router, message([1] * 160, max_tokens=300)))
        await asyncio.sleep(0.5)
        router.operations.report_gone(cluster.workers["p0"].epoch)
        cluster.workers["p0"].kill()
        cluster.workers["d0"].kill()
        cluster.start_worker("d0", n_pages=100)
        outcome = await task
        assert isinstance(outcome.error, UnavailableError)
        assert "has pages for 460 tokens" in outcome.error.message
        assert 2 < outcome.ended_at < 10

    play(script, (), config=limited(unavailable_after_s=1.0, lost_workers_wait_s=2.0))
