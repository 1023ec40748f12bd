"""More than can be served: who is refused, how soon, and on what work is spent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from twolane.errors import DeadlineError, OverloadedError
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.dispatch.drain_rate import DrainRate
from twolane.router.dispatch.service_time import ServiceTime
from twolane.router.intake import Intake
from twolane.router.router import Router
from twolane.router.testing.client import Outcome, ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer

PROMPT = [5, 6, 7, 8]
Script = Callable[[Router, ScriptedCluster], Awaitable[None]]


def play_with_rows(script: Script, decode_rows: int, **admission: Any) -> None:
    """One prefill worker, and one decode worker of so many rows."""

    async def with_rows(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=decode_rows)
        await asyncio.sleep(0.1)
        await script(router, cluster)

    config = RouterConfig(admission=AdmissionConfig(extra_rows=0, **admission))
    play(with_rows, ("p0",), config=config)


def start(router: Router, n: int, **options: Any) -> asyncio.Task[Outcome]:
    return asyncio.create_task(ask(router, message([n + 1, 2], max_tokens=30), **options))


def test_full_queue_evicts_the_youngest_of_the_lowest_priority_for_a_higher_one() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = {}
        for name, priority in [("runs", 0), ("old", -10), ("young", -10), ("mid", 0)]:
            asked = message(PROMPT, request_id=name, priority=priority, max_tokens=30)
            tasks[name] = asyncio.create_task(ask(router, asked))
            await asyncio.sleep(0.001)
        high = await ask(router, message(PROMPT, priority=100, max_tokens=30))
        assert high.tokens == expected_answer(PROMPT, 30)
        evicted = await tasks["young"]
        assert isinstance(evicted.error, OverloadedError)
        assert "gave its place" in str(evicted.error)
        assert evicted.error.retry_after_s > 0
        again = f" (try again in {evicted.error.retry_after_s:g} s)"
        assert str(evicted.error) == evicted.error.message + again
        for name in ("runs", "old", "mid"):
            assert (await tasks[name]).tokens == expected_answer(PROMPT, 30)
        assert router.status().counters["refused.evicted"] == 1

    play_with_rows(script, decode_rows=1, max_queued=3)


def test_full_queue_refuses_one_of_equal_or_lower_priority() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [start(router, n) for n in range(4)]
        await asyncio.sleep(0.001)
        for priority in (0, -10):
            outcome = await ask(router, message(PROMPT, priority=priority))
            assert isinstance(outcome.error, OverloadedError)
        assert all(outcome.error is None for outcome in await asyncio.gather(*tasks))

    play_with_rows(script, decode_rows=1, max_queued=3)


def test_refusal_comes_before_the_prompt_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [start(router, n) for n in range(4)]
        await asyncio.sleep(0.001)
        with monkeypatch.context() as patch:
            patch.setattr(Intake, "make_job", None)
            assert isinstance((await ask(router, message(PROMPT))).error, OverloadedError)
            late = await ask(router, message(PROMPT), time_left_s=-1.0)
            assert isinstance(late.error, DeadlineError)
            with pytest.raises(OverloadedError):
                router.check_room(priority=0)
            with pytest.raises(DeadlineError):
                router.check_room(time_left_s=0.0)
            router.check_room()  # of a priority that is not known yet, and may be the highest
        await asyncio.gather(*tasks)

    play_with_rows(script, decode_rows=1, max_queued=3)


def test_refusals_for_want_of_room_are_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [start(router, n) for n in range(4)]
        await asyncio.sleep(0.001)
        for _ in range(50):
            assert isinstance((await ask(router, message(PROMPT))).error, OverloadedError)
        await asyncio.gather(*tasks)

    with caplog.at_level("INFO", logger="twolane.router.refusal_log"):
        play_with_rows(script, decode_rows=1, max_queued=3)
    (line,) = [m for m in caplog.messages if m.startswith("refused")]
    assert "requests are waiting; at most 3 may" in line


def test_names_of_models_that_nobody_serves_are_not_kept() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [start(router, n) for n in range(4)]
        await asyncio.sleep(0.001)
        outlook = router._dispatcher.board.outlook
        for n in range(100):
            asked = message(PROMPT)
            asked.model = f"model-{n}"
            assert (await ask(router, asked)).error is not None
        assert len(outlook) == 1
        await asyncio.gather(*tasks)

    play_with_rows(script, decode_rows=1, max_queued=30)


def test_queue_is_bounded_by_the_expected_wait_and_higher_priorities_wait_less() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [start(router, n) for n in range(20)]
        await asyncio.sleep(3.6)  # 0.35 s each, one after the other: the rate is known
        while True:  # fill it
            outcome = start(router, 1)
            await asyncio.sleep(0.001)
            if outcome.done():
                break
            tasks.append(outcome)
        refused = (await outcome).error
        assert isinstance(refused, OverloadedError)
        assert refused.retry_after_s > 4.0
        assert refused.metadata["bound"] == "5"
        assert 10 <= router.status().requests_by_state["queued"] <= 17
        assert router.status().counters["refused.queue_long"] == 1
        high = await ask(router, message(PROMPT, priority=1, max_tokens=30))
        assert high.error is None
        assert all(outcome.error is None for outcome in await asyncio.gather(*tasks))

    play_with_rows(script, decode_rows=1, max_wait_s=5.0)


def test_a_low_priority_that_higher_ones_overtake_is_refused_once_it_cannot_be_reached() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = [start(router, n) for n in range(20)]
        await asyncio.sleep(3.6)  # 0.35 s each, one after the other: the rate is known
        low = start(router, 1)
        low_with_deadline = start(router, 2, time_left_s=4.8)
        await asyncio.sleep(0.01)
        assert not low.done()
        assert not low_with_deadline.done()
        began = asyncio.get_running_loop().time()
        high = [
            asyncio.create_task(ask(router, message([n + 1, 2], max_tokens=30, priority=10)))
            for n in range(14)
        ]
        overtaken = await low
        assert isinstance(overtaken.error, OverloadedError)
        assert "of higher priorities go first now" in str(overtaken.error)
        assert overtaken.error.retry_after_s > 4.0
        late = await low_with_deadline
        assert isinstance(late.error, DeadlineError)
        assert "of higher priorities go first now" in str(late.error)
        for outcome in (overtaken, late):
            assert outcome.ended_at - began < 2.0, "long before its deadline, or any timeout"
        assert router.status().counters["refused.overtaken"] >= 2
        assert all(outcome.error is None for outcome in await asyncio.gather(*high))
        await asyncio.gather(*tasks)

    play_with_rows(script, decode_rows=1, max_wait_s=5.0)


def test_deadline_that_the_measured_pace_cannot_meet_is_refused_at_once_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for n in range(10):
            await start(router, n)  # takes 0.35 s
        alone = await start(router, 1, time_left_s=0.25)
        assert alone.error is not None
        assert len(alone.tokens) > 10, "an idle cluster tries"
        crowd = [start(router, n) for n in range(2)]
        await asyncio.sleep(0.01)
        started = asyncio.get_running_loop().time()
        high = message(PROMPT, max_tokens=30, priority=1)  # nobody is ahead of it
        with monkeypatch.context() as patch:
            patch.setattr(Intake, "make_job", None)  # which would look at the prompt
            refused = await ask(router, high, time_left_s=0.25)
        assert isinstance(refused.error, DeadlineError)
        assert refused.ended_at == started
        assert float(refused.error.metadata["estimated_service_s"]) == pytest.approx(0.35, rel=0.2)
        assert (await ask(router, high, time_left_s=1.5)).error is None
        assert all(outcome.error is None for outcome in await asyncio.gather(*crowd))

    play_with_rows(script, decode_rows=1)


def test_no_work_is_spent_on_what_has_waited_too_long_to_meet_its_deadline() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for n in range(10):
            await start(router, n)
        worker = cluster.workers["p0"]
        long = asyncio.create_task(ask(router, message(PROMPT, max_tokens=200)))  # 2 s
        await asyncio.sleep(0.01)
        started = asyncio.get_running_loop().time()
        waiting = start(router, 1, time_left_s=1.5)
        behind = start(router, 2)
        await asyncio.sleep(0.01)
        n_commands = len([c for c in worker.commands if c.HasField("assign")])
        outcome = await waiting
        assert isinstance(outcome.error, DeadlineError)
        assert outcome.ended_at - started == pytest.approx(1.5 - 0.35, abs=0.1)
        assert "answer would take" in outcome.error.message
        assert not (await long).error
        assert not (await behind).error
        assert len([c for c in worker.commands if c.HasField("assign")]) == n_commands + 1

    play_with_rows(script, decode_rows=1)


def test_wait_of_a_low_priority_counts_what_goes_to_higher_ones() -> None:
    rate = DrainRate()
    for n in range(40):
        rate.note(n * 0.05, priority=10)
    high, low = rate.wait_s(10, 2.0, 10), rate.wait_s(10, 2.0, 0)
    assert high == pytest.approx(0.5, rel=0.05)
    assert low == pytest.approx(8 * 0.5, rel=0.05)
    assert rate.wait_s(0, 2.0, 0) == 0.0, "nobody is ahead"


def test_one_slow_beginning_does_not_make_short_answers_hopeless() -> None:
    pace = ServiceTime()
    for n in range(24):
        pace.note(
            prompt_tokens=100,
            first_s=10.0 if n < 8 else 0.1,
            n_tokens=50,
            tokens_s=0.5,
            max_tokens=50,
            is_whole=True,
            now=n,
        )
    expected_s = pace.service_s(100, 50, 24.0)
    assert expected_s is not None
    assert expected_s < 2 * 10.5, "at most twice what was predicted of what it is too much"


def test_pace_is_that_of_the_latest_answers_with_a_margin_for_what_it_was_off() -> None:
    pace = ServiceTime()

    def note(n_tokens: int, gap_s: float, now: float) -> None:
        pace.note(
            prompt_tokens=100,
            first_s=0.2,
            n_tokens=n_tokens,
            tokens_s=gap_s * (n_tokens - 1),
            max_tokens=100,
            is_whole=True,
            now=now,
        )

    for n in range(7):
        note(50, 0.01, n)
    assert pace.service_s(100, 100, 7.0) is None, "too few say nothing"
    for n in range(7, 20):
        note(50, 0.01, n)
    steady = pace.service_s(100, 100, 20.0)
    assert steady == pytest.approx(0.2 + 49 * 0.01, rel=0.01), "answers have half of max_tokens"
    assert pace.service_s(200, 100, 20.0) == pytest.approx(0.4 + 49 * 0.01, rel=0.01)
    for n in range(20, 100):
        note(50, 0.04 if n % 2 else 0.01, n)
    uneven = pace.service_s(100, 100, 100.0)
    assert uneven is not None
    assert uneven > 1.2 * (0.2 + 49 * 0.025), "with a margin"
    assert pace.service_s(100, 100, 200.0) is None, "old news say nothing"


def test_ten_times_the_capacity_is_refused_at_once_and_the_highest_is_served() -> None:
    """Four rows of 0.35 s each; asked for ten times as often, of three priorities, with deadlines
    and without; and once a second of priority 100."""
    capacity_per_s, for_s, per_s = 4 / 0.35, 10.0, 10 * 4 / 0.35
    asked: list[tuple[float, int, asyncio.Task[Outcome]]] = []

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        now = asyncio.get_running_loop().time

        def start_one(priority: int, time_left_s: float | None = None) -> asyncio.Task[Outcome]:
            request = message([len(asked) % 900 + 1, 2], max_tokens=30, priority=priority)
            task = asyncio.create_task(ask(router, request, time_left_s=time_left_s))
            asked.append((now(), priority, task))
            return task

        for n in range(int(for_s * per_s)):
            start_one((-10, 0, 10)[n % 3], (None, 1.0, 3.0, 10.0)[n // 3 % 4])
            if n % int(per_s) == 0:
                start_one(100)
            await asyncio.sleep(1 / per_s)
        over = now()
        finished = router.status().counters["finished"]
        assert finished >= 0.85 * capacity_per_s * for_s
        assert len(router._dispatcher.board.requests) < 1024
        outcomes = [(at, priority, await task) for at, priority, task in asked]
        kinds = {type(outcome.error) for _, _, outcome in outcomes}
        assert kinds == {type(None), DeadlineError, OverloadedError}
        for at, priority, outcome in outcomes:
            if priority == 100:
                assert outcome.error is None
                assert outcome.ended_at - at < 1.0
            if isinstance(outcome.error, OverloadedError):
                assert outcome.error.retry_after_s > 0
                assert outcome.ended_at - at < 5.5, "the queue is bounded in time"
        refused = [o.ended_at - at for at, _, o in outcomes if o.error and not o.responses]
        assert len(refused) > 0.6 * len(outcomes)
        assert max(refused) == 0.0, "those that are refused at the door"
        assert now() - over < 6.0
        assert (await start_one(-10, 0.5)).error is None, "all is as before"

    play_with_rows(script, decode_rows=4, max_wait_s=5.0)
