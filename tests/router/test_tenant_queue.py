"""Several tenants at one router that is full: who waits how long, who gives its place, who is told
early that its deadline cannot be met."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from twolane.errors import DeadlineError, OverloadedError
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.router import Router
from twolane.router.testing.client import Outcome, ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.security.keys import TenantLimits

MANY, ONE = client_of("many"), client_of("one")
TOKENS = 10


def play_small(script: Any, *, rows: int = 2, limits_of: Any = None, **admission: Any) -> None:
    """With so many rows in all."""

    async def small(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=rows)
        await asyncio.sleep(0.1)
        await script(router, cluster)

    config = RouterConfig(admission=AdmissionConfig(extra_rows=0, **admission))
    more = {} if limits_of is None else {"limits_of": limits_of}
    play(small, ("p0",), config=config, **more)


def ask_many(
    router: Router, n: int, caller: Any = MANY, **options: Any
) -> list[asyncio.Task[Outcome]]:
    requests = [message([at % 99, 2], max_tokens=TOKENS) for at in range(n)]
    return [asyncio.create_task(ask(router, one, caller=caller, **options)) for one in requests]


async def end(router: Router, tasks: Sequence[asyncio.Task[Outcome]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_single_request_does_not_wait_behind_the_crowd_of_another_tenant() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        alone = await ask(router, message([5, 6], max_tokens=TOKENS), caller=ONE)
        alone_s = clock() - begun
        crowd = ask_many(router, 3_000)
        await asyncio.sleep(0.2)
        assert len(router._dispatcher.board.queue) > 2_900
        for _ in range(5):
            begun = clock()
            outcome = await ask(router, message([5, 6], max_tokens=TOKENS), caller=ONE)
            assert outcome.tokens == alone.tokens == expected_answer([5, 6], TOKENS)
            assert clock() - begun < 4 * alone_s, "about until a row is free, and its own time"
        await end(router, crowd)

    play_small(script, max_queued=5_000, max_wait_s=1e6)


def test_tenants_that_always_wait_share_by_their_weights() -> None:
    limits = {"many": TenantLimits(weight=3.0)}
    even = TenantLimits()

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tasks = {caller.tenant: ask_many(router, 400, caller) for caller in (ONE, MANY)}
        while sum(task.done() for task in tasks["many"]) < 150:
            await asyncio.sleep(0.1)
        done = {tenant: sum(task.done() for task in each) for tenant, each in tasks.items()}
        assert done["many"] / done["one"] == pytest.approx(3.0, rel=0.2)
        await end(router, [*tasks["one"], *tasks["many"]])

    play_small(script, max_wait_s=1e6, limits_of=lambda tenant: limits.get(tenant, even))


def test_full_queue_takes_a_place_from_the_longest_backlog_of_the_least_priority() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        crowd = ask_many(router, 12)  # two run, ten wait
        await asyncio.sleep(0.01)
        ones = ask_many(router, 5, ONE)
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in ones)
        lost = [task for task in crowd if task.done()]
        assert lost == crowd[-5:], "the youngest of the longest backlog"
        for task in lost:
            error = (await task).error
            assert isinstance(error, OverloadedError)
            assert "a tenant with fewer requests here" in error.message
            assert error.retry_after_s > 0
        # five each: nobody gives way to somebody who has as much
        for caller in (ONE, MANY):
            outcome = await ask(router, message([1], max_tokens=1), caller=caller)
            assert isinstance(outcome.error, OverloadedError)
        counters = router.status().counters
        assert (counters["refused.evicted"], counters["refused.queue_full"]) == (5, 2)
        await asyncio.gather(*crowd, *ones)

    play_small(script, max_queued=10)


def test_lower_priority_gives_way_whoever_has_the_longer_backlog() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        crowd = ask_many(router, 11)  # two run, nine wait
        low = asyncio.create_task(
            ask(router, message([1], priority=-1, max_tokens=TOKENS), caller=ONE)
        )
        await asyncio.sleep(0.01)
        crowd += ask_many(router, 1)
        assert isinstance((await low).error, OverloadedError)
        outcomes = await asyncio.gather(*crowd)
        assert all(outcome.error is None for outcome in outcomes)

    play_small(script, max_queued=10)


def test_deadlines_are_judged_by_the_tenants_own_place_in_the_queue() -> None:
    """The crowd's next request would miss its deadline and is told so at once; the single tenant's,
    with the same deadline, is admitted and keeps it."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        clock = asyncio.get_running_loop().time
        warm = ask_many(router, 40)
        await asyncio.gather(*warm)
        crowd = ask_many(router, 300)
        await asyncio.sleep(1.0)
        for _ in range(5):
            begun = clock()
            asked = message([1, 2], max_tokens=TOKENS)
            refused = await ask(router, asked, caller=MANY, time_left_s=3.0)
            assert isinstance(refused.error, DeadlineError)
            assert clock() == begun, "at once"
            kept = await ask(router, asked, caller=ONE, time_left_s=3.0)
            assert kept.error is None
            assert clock() - begun < 3.0
        await end(router, crowd)

    play_small(script, max_queued=5_000, max_wait_s=1e6)


def test_nine_of_ten_that_are_admitted_with_a_deadline_meet_it_though_tenants_share() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        await asyncio.gather(*ask_many(router, 40))
        tasks: list[asyncio.Task[Outcome]] = []
        crowd = ask_many(router, 200)
        for _ in range(200):  # both offer as much as there is in all
            for caller in (ONE, MANY):
                tasks += ask_many(router, 1, caller, time_left_s=2.0)
            await asyncio.sleep(0.05)
        outcomes = await asyncio.gather(*tasks)
        met = sum(outcome.error is None for outcome in outcomes)
        refused = sum(
            isinstance(outcome.error, DeadlineError) and not outcome.tokens for outcome in outcomes
        )
        assert met + refused >= 0.9 * len(outcomes)
        late = [outcome for outcome in outcomes if outcome.error is not None and outcome.tokens]
        assert met > 20
        assert len(late) <= 0.1 * (met + len(late)), (met, refused, len(late))
        await end(router, crowd)

    play_small(script, max_queued=5_000, max_wait_s=1e6)
