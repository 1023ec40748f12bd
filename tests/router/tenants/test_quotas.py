"""Quotas of a tenant: requests a second, tokens a minute, requests at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twolane.errors import CancelledError, InvalidParameterError, QuotaError
from twolane.router.router import Router
from twolane.router.tenants.accounts import Account
from twolane.router.tenants.bucket import Bucket
from twolane.router.testing.client import Outcome, ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.security.keys import TenantLimits

RED, BLUE = client_of("red"), client_of("blue")
Script = Any


def play_with(script: Script, **quotas: Any) -> None:
    """`red` has these quotas, nobody else has any."""
    limits = {"red": TenantLimits(**quotas)}
    free = TenantLimits()
    play(script, limits_of=lambda tenant: limits.get(tenant, free))


def quota_of(outcome: Outcome) -> tuple[str, float] | None:
    """Which one has refused it, and when to come back; None: none has."""
    if outcome.error is None:
        return None
    assert isinstance(outcome.error, QuotaError), outcome.error
    assert "quota of tenant red" in outcome.error.message
    return outcome.error.metadata["quota"], outcome.error.retry_after_s


def test_bucket_refills_at_its_rate_and_holds_no_more_than_its_capacity() -> None:
    bucket = Bucket(2.0, 10.0, 0.0)
    bucket.take(10, 0.0)
    assert bucket.wait_s(1, 0.0) == 0.5
    assert bucket.level(3.0) == 6.0
    assert bucket.level(99.0) == 10.0
    bucket.take(25, 99.0)
    assert bucket.level(99.0) == -15.0, "a debt"
    assert bucket.wait_s(100, 99.0) == 12.5, "more than its capacity needs a full bucket"
    bucket.tune(5.0, 4.0, 99.0)
    assert bucket.level(999.0) == 4.0
    bucket.take(-3, 999.0)
    assert bucket.level(999.0) == 4.0
    bucket.take(1, 999.0)
    assert bucket.level(998.0) == 3.0, "time does not go back"


def test_requests_a_second_are_a_burst_and_then_a_rate() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message([1], max_tokens=1)
        first = [quota_of(await ask(router, request, caller=RED)) for _ in range(4)]
        assert all(quota is None for quota in first)
        name, retry_after_s = quota_of(await ask(router, request, caller=RED)) or ("", 0.0)
        assert name == "requests"
        assert 0 < retry_after_s <= 0.25
        assert router.status().counters["refused.quota_requests"] == 1
        assert (await ask(router, request, caller=BLUE)).error is None
        await asyncio.sleep(retry_after_s)
        assert (await ask(router, request, caller=RED)).error is None

    play_with(script, requests_per_s=4)


def test_refusal_is_made_before_the_message_is_looked_at_and_takes_nothing() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        assert (await ask(router, message([1], max_tokens=1), caller=RED)).error is None
        for _ in range(50):
            with pytest.raises(QuotaError):
                router.check_room(RED)
        router.check_room(BLUE)
        await asyncio.sleep(1.01)
        router.check_room(RED)

    play_with(script, requests_per_s=1)


def test_requests_at_once_are_those_that_wait_or_run() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        running = [
            asyncio.create_task(
                ask(router, message([n], request_id=f"r{n}", max_tokens=900), caller=RED)
            )
            for n in range(3)
        ]
        await asyncio.sleep(0.1)
        third = running.pop()
        assert quota_of(await third) == ("concurrent", 1.0)
        assert (await ask(router, message([1], max_tokens=1), caller=BLUE)).error is None
        assert router.cancel("r0", tenant="red")
        assert isinstance((await running[0]).error, CancelledError)
        assert (await ask(router, message([1], max_tokens=1), caller=RED)).error is None
        assert router.cancel("r1", tenant="red")
        await running[1]

    play_with(script, concurrent=2)


def test_tokens_a_minute_are_estimated_at_first_and_exact_in_the_end() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        def left() -> float:
            (level,) = router.quotas("red")
            assert (level.name, level.limit) == ("tokens", 6000)
            return level.remaining

        running = asyncio.create_task(
            ask(router, message([1] * 100, request_id="r", max_tokens=1900), caller=RED)
        )
        await asyncio.sleep(0.1)
        assert left() == pytest.approx(4000, abs=11), "2,000 are taken; 100 a second come back"
        assert router.cancel("r", tenant="red")
        n_output = len((await running).tokens)
        assert left() == pytest.approx(6000 - 100 - n_output, abs=25)

    play_with(script, tokens_per_min=6000)


def test_request_that_no_worker_had_costs_no_tokens() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for worker in list(cluster.workers.values()):
            router.operations.drain(worker.address.worker_id)
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(
            ask(router, message([1] * 100, request_id="r", max_tokens=500), caller=RED)
        )
        await asyncio.sleep(0.1)
        assert router.quotas("red")[0].remaining < 600
        assert router.cancel("r", tenant="red")
        await waiting
        assert router.quotas("red")[0].remaining == 1000
        for worker in list(cluster.workers.values()):
            router.operations.drain(worker.address.worker_id, undo=True)

    play_with(script, tokens_per_min=1000)


def test_request_larger_than_a_minutes_tokens_is_served_and_paid_off() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        large = message([1] * 900, max_tokens=300)
        assert (await ask(router, large, caller=RED)).error is None
        name, retry_after_s = quota_of(
            await ask(router, message([1], max_tokens=9), caller=RED)
        ) or ("", 0)
        assert name == "tokens"
        assert 15 < retry_after_s < 62
        await asyncio.sleep(retry_after_s)  # the debt is paid off; now it is told by its size
        name, retry_after_s = quota_of(
            await ask(router, message([1], max_tokens=9), caller=RED)
        ) or ("", 0)
        assert 0.9 < retry_after_s < 1.1, "10 tokens at 10 a second"
        await asyncio.sleep(retry_after_s)
        assert (await ask(router, message([1], max_tokens=9), caller=RED)).error is None
        assert quota_of(await ask(router, large, caller=RED)) is not None

    play_with(script, tokens_per_min=600)


def test_rate_of_tokens_over_ten_minutes_is_the_quota() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        loop = asyncio.get_running_loop()
        until, n_tokens = loop.time() + 600, 0
        while loop.time() < until:
            outcome = await ask(router, message([1] * 50, max_tokens=200), caller=RED)
            n_tokens += len(outcome.tokens) + 50 * (outcome.error is None)
            quota = quota_of(outcome)
            if quota is not None:
                await asyncio.sleep(quota[1])
        assert n_tokens == pytest.approx(11 * 3000, rel=0.05), "ten minutes', and the first burst"

    play_with(script, tokens_per_min=3000)


def test_priority_beyond_the_tenants_is_refused() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for priority, is_taken in ((-5, True), (0, True), (1, False), (100, False)):
            outcome = await ask(router, message([1], priority=priority, max_tokens=1), caller=RED)
            assert (outcome.error is None) == is_taken
            if not is_taken:
                assert isinstance(outcome.error, InvalidParameterError)
                assert "at most 0 for this tenant" in outcome.error.message
        assert (
            await ask(router, message([1], priority=9, max_tokens=1), caller=BLUE)
        ).error is None

    play_with(script, max_priority=0)


def test_limits_that_change_count_from_now_on() -> None:
    limits = {"red": TenantLimits()}

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message([1], max_tokens=1)
        assert router.quotas("red") == []
        assert all([(await ask(router, request, caller=RED)).error is None for _ in range(9)])
        limits["red"] = TenantLimits(requests_per_s=1)
        assert (await ask(router, request, caller=RED)).error is None
        assert quota_of(await ask(router, request, caller=RED)) is not None
        limits["red"] = TenantLimits()
        assert (await ask(router, request, caller=RED)).error is None

    play(script, limits_of=lambda tenant: limits.get(tenant, limits["red"]))


@pytest.mark.parametrize(
    ("limits", "n_tokens", "text"),
    [
        (TenantLimits(requests_per_s=5), 0, "5 requests a second; 2 .* give 2.5 of it each"),
        (TenantLimits(concurrent=9), 0, "9 requests at once; 2 .* give 4 of it each"),
        (
            TenantLimits(tokens_per_min=3_000_000),
            1.0,
            "3000000 tokens a minute, of which 0 are left, .*; 2 .* give 1500000 of it each",
        ),
    ],
)
def test_refusal_by_a_part_of_a_quota_says_so_and_when_to_come_again(
    limits: TenantLimits, n_tokens: float, text: str
) -> None:
    account = Account("acme")
    account.tune(limits, 0.0, parts=2)
    for _ in range(4):
        account.take(10_000_000 if n_tokens else 1.0, 0.0)
    with pytest.raises(QuotaError, match=rf"acme is {text} \(try again in .* s\)$"):
        account.check(n_tokens, 0.0)
    account.tune(limits, 0.0, parts=1)
    account.take(10_000_000, 0.0)
    account.n_live = 9
    with pytest.raises(QuotaError) as alone:
        account.check(n_tokens, 0.0)
    assert "each" not in str(alone.value)
