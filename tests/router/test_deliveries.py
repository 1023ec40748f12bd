"""A token goes out at once, unless the loop is full: then with the next one of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from twolane.router.config import RouterConfig
from twolane.router.pressure import MAX_PAUSE_S, MIN_PAUSE_S, WINDOW_S, Pressure
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.rpc.measured_loop import MeasuredLoop

LONG = message([1], max_tokens=40)
PAUSE_S = 0.05


def test_each_token_goes_out_alone_while_the_loop_keeps_up() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, LONG)
        assert not router._deliveries.pressure.pause_s
        assert outcome.responses >= 40

    play(script)


def test_tokens_go_together_while_the_loop_is_full_and_none_is_lost() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        router._deliveries.pressure.pause_s = PAUSE_S
        outcome = await ask(router, LONG)
        assert outcome.tokens == expected_answer([1], 40)
        assert outcome.finish_reason
        assert outcome.responses <= 25
        assert not router._deliveries._held

    play(script)


@pytest.mark.parametrize("step_s", [0.004, 0.01, 0.03])
def test_a_token_is_late_by_one_step_however_long_the_loop_is_full(step_s: float) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].step_s = step_s
        parts, late_s = await parts_while_full(router, lambda n_tokens: None)
        assert set(parts[3:-1]) == {2}, "a step makes one token"
        assert late_s == pytest.approx(step_s, rel=0.1)

    play(script)


def test_tokens_that_come_late_go_together_and_none_waits_for_more_than_a_step() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        decode = cluster.workers["d0"]
        decode.step_s = slow_s = 0.03

        def catch_up(n_tokens: int) -> None:
            if n_tokens == 20:
                decode.step_s = 0.002

        parts, late_s = await parts_while_full(router, catch_up)
        assert max(parts) >= 5
        assert late_s < 1.25 * slow_s

    play(script)


async def parts_while_full(
    router: Router, note: Callable[[int], None], pause_s: float = MAX_PAUSE_S
) -> tuple[list[int], float]:
    """The tokens of each part of an answer, and how long one has waited in the router at most.
    `note` is told how many have come."""
    router._deliveries.pressure.pause_s = pause_s
    loop, came, parts, late_s = asyncio.get_running_loop(), list[float](), list[int](), 0.0
    with await router.open(LONG) as delivery:
        answer = delivery.request.answer

        def on_news() -> None:
            nonlocal late_s
            piece = delivery.take()
            if piece is not None and piece.token_ids:
                parts.append(len(piece.token_ids))
                is_held = piece.first_index < len(came)
                late_s = max(late_s, loop.time() - came[piece.first_index] if is_held else 0.0)

        delivery.on_news = on_news
        while not delivery.is_over:
            await asyncio.sleep(0.0001)
            came += [loop.time()] * (len(answer.tokens) - len(came))
            note(len(came))
    return parts, late_s


def test_no_token_waits_while_the_pause_is_shorter_than_a_step() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].step_s = 0.03
        parts, late_s = await parts_while_full(router, lambda n_tokens: None, MIN_PAUSE_S)
        assert set(parts) == {1}
        assert late_s < 0.001

    play(script)


def test_what_another_answer_held_earlier_does_not_send_a_token_alone() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].step_s = 0.03
        first = asyncio.create_task(parts_while_full(router, lambda n_tokens: None))
        await asyncio.sleep(0.015)  # half a step out of phase
        for parts, late_s in (await parts_while_full(router, lambda n_tokens: None), await first):
            assert set(parts[3:-1]) == {2}
            assert late_s == pytest.approx(0.03, rel=0.1)

    play(script)


def test_the_first_token_does_not_wait_nor_any_for_longer_than_the_pause() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        router._deliveries.pressure.pause_s = PAUSE_S
        loop = asyncio.get_running_loop()
        with await router.open(LONG) as delivery:
            came: list[tuple[float, int]] = []

            def on_news() -> None:
                piece = delivery.take()
                if piece is not None:
                    came.append((loop.time(), len(piece.token_ids)))

            delivery.on_news = on_news
            while not router._deliveries._held:
                await asyncio.sleep(0.001)
            held_at = loop.time()
            assert came, "the first token has gone out"
            n_before = len(came)
            while len(came) == n_before:
                await asyncio.sleep(0.001)
            assert came[-1][0] - held_at <= PAUSE_S + 0.001

    play(script)


def test_tokens_wait_once_calls_fill_the_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            loop.call_soon(call)

        async with Router(RouterConfig(), ScriptedCluster()) as router:
            call()
            async with asyncio.timeout(30.0):
                while not router._deliveries.pressure.pause_s:
                    await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(main())


Step = tuple[float, float]  # the busy share of a window, and the pause after it


@pytest.mark.parametrize(
    "steps",
    [
        [(0.3, 0.0), (0.6, 0.0), (0.9, MIN_PAUSE_S), (0.6, MIN_PAUSE_S), (0.3, 0.0)],
        [(1.0, MIN_PAUSE_S * 2**n) for n in range(4)] + [(1.0, MAX_PAUSE_S)],
        [(1.0, 0.01), (1.0, 0.02), (0.4, 0.01), (0.4, 0.0), (0.4, 0.0)],
    ],
)
def test_tokens_wait_the_longer_the_longer_the_loop_is_full(steps: list[Step]) -> None:
    pressure, now, idle_s = Pressure(), 1000.0, 5.0
    pressure.note(now, idle_s)
    for busy, pause_s in steps:
        for _ in range(10):
            now += 1.001 * WINDOW_S / 10
            idle_s += (1.0 - busy) * 1.001 * WINDOW_S / 10
            pressure.note(now, idle_s)
        assert pressure.pause_s == pytest.approx(pause_s)
