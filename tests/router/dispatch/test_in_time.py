"""Where a controller tells an SLO: what can be in time goes first, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from twolane.errors import OverloadedError
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.operations import TOLD_FOR_S
from twolane.router.router import Router
from twolane.router.testing.client import Outcome, ask, client_of, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.v1 import cluster_pb2

Script = Callable[[Router, ScriptedCluster], Awaitable[None]]
SLO = cluster_pb2.ScalerStatus(ttft_s=2.0, gap_s=0.1, wakes=True)
LATE_S = 0.85  # more than 0.4 of that time


def play_with_one_row(script: Script, **admission: Any) -> None:
    async def with_one(router: Router, cluster: ScriptedCluster) -> None:
        cluster.start_worker("d0", decode_rows=1)
        await asyncio.sleep(0.1)
        await script(router, cluster)

    config = RouterConfig(admission=AdmissionConfig(extra_rows=0, **admission))
    play(with_one, ("p0",), config=config)


def tell(router: Router, slo: cluster_pb2.ScalerStatus | None = SLO) -> None:
    router.operations.supervise(cluster_pb2.SuperviseRequest(controller_id="c", scaler=slo))


def start(
    router: Router, max_tokens: int = 10, priority: int = 0, **options: Any
) -> asyncio.Task[Outcome]:
    asked = message([9, 2], max_tokens=max_tokens, priority=priority)
    return asyncio.create_task(ask(router, asked, **options))


async def order_of(**tasks: asyncio.Task[Outcome]) -> list[str]:
    ends = {name: await task for name, task in tasks.items()}
    assert all(outcome.error is None for outcome in ends.values())
    return sorted(ends, key=lambda name: ends[name].ended_at)


@pytest.mark.parametrize("told", ["", "on", "paused", "dry-run", "no more"])
def test_what_can_be_in_time_goes_first_while_a_controller_tells_the_slo(told: str) -> None:
    """A deadline moves nothing, however far it is."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        if told:
            mode = "on" if told == "no more" else told
            tell(router, cluster_pb2.ScalerStatus(ttft_s=2.0, gap_s=0.1, mode=mode))
        running = start(router, 150)
        await asyncio.sleep(0.01)
        late, bound = start(router), start(router, time_left_s=1e3)
        await asyncio.sleep(LATE_S)
        soon = start(router)
        if told == "no more":
            tell(router, None)
            await asyncio.sleep(0.6)
        router.check_integrity()
        assert not running.done()
        order = await order_of(late=late, bound=bound, soon=soon)
        is_held = told in ("on", "paused")
        assert order == (["soon", "late", "bound"] if is_held else ["late", "bound", "soon"])
        await running

    play_with_one_row(script)


def test_an_slo_is_forgotten_with_the_controller_that_told_it() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        board = router._dispatcher.board
        tell(router)
        await asyncio.sleep(TOLD_FOR_S - 1)
        tell(router)
        await asyncio.sleep(TOLD_FOR_S - 1)
        assert board.slo_ttft_s() == 2.0
        assert board.roster.holds_slo()
        await asyncio.sleep(2)
        assert board.slo_ttft_s() is None
        assert not board.roster.holds_slo()
        assert not board.wakes()

    play_with_one_row(script)


def test_a_deferred_one_goes_before_lower_priorities() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        running = start(router, 150)
        await asyncio.sleep(0.01)
        high, low = start(router, priority=1), start(router)
        await asyncio.sleep(LATE_S)
        soon = start(router)
        assert await order_of(high=high, soon=soon, low=low) == ["high", "soon", "low"]
        await running

    play_with_one_row(script)


def test_a_resumed_request_keeps_its_place_however_long_it_waits() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        resumed = start(router, 30)
        await asyncio.sleep(0.1)
        cluster.start_worker("d1", decode_rows=1)
        await asyncio.sleep(0.1)
        running = start(router, 250)
        await asyncio.sleep(0.01)
        assert not resumed.done()
        cluster.workers["d0"].kill()
        await asyncio.sleep(1.5)
        assert router.status().requests_by_state == {"running": 1, "resuming": 1}
        soon = start(router)
        assert await order_of(resumed=resumed, soon=soon) == ["resumed", "soon"]
        assert (await running).error is None

    play_with_one_row(script, max_wait_s=1.2)


def test_what_is_deferred_is_refused_after_max_wait_if_others_go_first() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        begun = asyncio.get_running_loop().time()
        running = start(router, 100)
        await asyncio.sleep(0.01)
        late, later = start(router), []
        await asyncio.sleep(LATE_S)
        for _ in range(6):
            later.append(start(router, 35))
            await asyncio.sleep(0.3)
        error = (await late).error
        assert isinstance(error, OverloadedError)
        assert "it has waited for 2." in str(error)
        assert error.metadata["bound"] == "2"
        assert error.retry_after_s > 0
        assert late.result().ended_at - begun == pytest.approx(2.0, abs=0.6)
        counters = router.status().counters
        assert (counters["refused.deferred"], counters["refused.overtaken"]) == (1, 0)
        await asyncio.gather(running, *later)

    play_with_one_row(script, max_wait_s=2.0)


def test_what_is_deferred_is_not_refused_before_anybody_has_gone_before_it() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        running, others = start(router, 300), []
        for _ in range(10):
            await asyncio.sleep(0.3)
            others.append(start(router))
        first = (await running).ended_at
        ends = await asyncio.gather(*others)
        assert all(outcome.error is None or outcome.ended_at > first for outcome in ends)

    play_with_one_row(script, max_wait_s=1.0)


@pytest.mark.parametrize("told", [False, True])
def test_what_nobody_goes_before_waits_as_long_as_without_an_slo(told: bool) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        running = start(router, 300)
        await asyncio.sleep(0.01)
        late = [start(router) for _ in range(2)]
        await asyncio.sleep(1.5)
        if told:
            tell(router)
        assert await order_of(first=late[0], second=late[1]) == ["first", "second"]
        assert (await running).error is None

    play_with_one_row(script, max_wait_s=1.0)


def test_a_pause_of_the_router_is_no_wait_of_what_is_deferred() -> None:
    """Though others go before it, one has since it was deferred, and another waits to do so."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        running = [start(router, 150)]
        await asyncio.sleep(0.01)
        late = start(router)
        await asyncio.sleep(LATE_S)
        running.append(start(router, 100))
        await running[0]
        await asyncio.sleep(0.1)
        assert not late.done()
        soon = start(router)
        await asyncio.sleep(0.01)
        router._dispatcher.tick(asyncio.get_running_loop().time() + 5.0, late_s=5.0)
        assert await order_of(soon=soon, late=late) == ["late", "soon"], "both are late now"
        assert (await running[1]).error is None

    play_with_one_row(script, max_wait_s=4.0)


def test_what_is_probably_cached_counts_in_full_until_it_is_computed() -> None:
    """The worker may have evicted it."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        asked = message(list(range(1, 200)), max_tokens=2)
        assert (await ask(router, asked)).error is None
        cluster.workers["p0"].prefill_s = 1.0
        again = asyncio.create_task(ask(router, asked))
        await asyncio.sleep(0.1)
        views = router._dispatcher.board.roster.all("fake")
        assert [view.backlog_tokens for view in views if view.prefills] == [199]
        assert (await again).error is None

    play_with_one_row(script)


def test_what_is_deferred_while_no_worker_serves_has_all_its_wait_before_it() -> None:
    """Though others go before it as soon as there is one, and go on coming."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        cluster.workers["d0"].kill()
        await asyncio.sleep(0.5)
        asked = [start(router) for _ in range(3)]
        await asyncio.sleep(4.0)
        assert router.status().requests_by_state == {"queued": 3}
        others = [start(router, 20) for _ in range(3)]
        cluster.start_worker("d1", decode_rows=1)
        for _ in range(8):
            await asyncio.sleep(0.15)
            others.append(start(router, 20))
        assert not all(task.done() for task in asked), "others go before them"
        assert all(o.error is None for o in await asyncio.gather(*asked, *others))

    play_with_one_row(script, max_wait_s=3.0)


def test_expected_waits_count_what_is_deferred() -> None:
    """So as many are refused at once as without an SLO."""
    refused: dict[bool, int] = {}

    async def script(router: Router, cluster: ScriptedCluster, *, knows_slo: bool) -> None:
        if knows_slo:
            tell(router)
        tasks = [start(router) for _ in range(12)]
        await asyncio.sleep(1.2)
        for _ in range(60):
            tasks.append(start(router))
            await asyncio.sleep(0.02)
        outcomes = await asyncio.gather(*tasks)
        kinds = {type(outcome.error) for outcome in outcomes}
        assert kinds == {type(None), OverloadedError}
        refused[knows_slo] = router.status().counters["refused.queue_long"]

    for knows_slo in (False, True):
        play_with_one_row(partial(script, knows_slo=knows_slo), max_wait_s=3.0)
    assert refused[False] > 15
    assert refused[True] == pytest.approx(refused[False], abs=5), refused


def test_a_full_queue_gives_the_place_of_one_that_is_deferred() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        tell(router)
        many = client_of("many")
        running = start(router, 150, caller=many)
        await asyncio.sleep(0.01)
        late = [start(router, caller=many) for _ in range(2)]
        await asyncio.sleep(LATE_S)
        soon = [start(router, caller=many) for _ in range(2)]
        await asyncio.sleep(0.01)
        one = start(router, caller=client_of("one"))
        await asyncio.sleep(0.01)
        assert [task.done() for task in (*late, *soon, one)] == [False, True, False, False, False]
        assert isinstance((await late[1]).error, OverloadedError)
        await asyncio.gather(running, late[0], *soon, one)

    play_with_one_row(script, max_queued=4)
