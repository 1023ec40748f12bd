"""A token goes out at once, unless the loop is behind: then with the next one of its answer."""

from __future__ import annotations

import asyncio

import pytest

from twolane.router.deliveries import LATE_STEP
from twolane.router.pressure import BUSY_SHARE, WINDOW_S, Pressure
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer

LONG = message([1], max_tokens=40)


def test_each_token_goes_out_alone_while_the_loop_keeps_up() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        outcome = await ask(router, LONG)
        assert not router._deliveries.pressure.is_behind
        assert outcome.responses >= 40

    play(script)


def test_two_tokens_go_together_while_the_loop_is_behind_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        monkeypatch.setattr(router._deliveries.pressure, "note", lambda *_: None)
        router._deliveries.pressure.is_behind = True
        outcome = await ask(router, LONG)
        assert outcome.tokens == expected_answer([1], 40)
        assert outcome.finish_reason
        assert outcome.responses <= 25
        assert not router._deliveries._held

    play(script)


def test_a_held_token_does_not_wait_for_a_late_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        monkeypatch.setattr(router._deliveries.pressure, "note", lambda *_: None)
        router._deliveries.pressure.is_behind = True
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
            held_at, step_s = loop.time(), delivery.request.timeline.gap_s
            n_before = len(came)
            monkeypatch.setattr(router._dispatcher.board, "touch", lambda request: None)
            while len(came) == n_before:  # no further token is heard of
                await asyncio.sleep(0.001)
            assert step_s > 0
            assert came[-1][0] - held_at <= LATE_STEP * step_s + 0.002

    play(script)


def test_the_loop_is_behind_when_tokens_take_most_of_its_time() -> None:
    pressure = Pressure()
    now = 100.0
    pressure.note(now, now)
    for share, is_behind in ((0.3, False), (BUSY_SHARE + 0.1, True), (0.3, False)):
        for _ in range(11):
            step_s = WINDOW_S / 10
            pressure.note(now, now + share * step_s)
            now += step_s
            pressure.note(now, now)
        assert pressure.is_behind is is_behind
