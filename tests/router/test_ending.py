"""Requests that are being admitted while the router ends its answers: nobody would end them."""

from __future__ import annotations

import asyncio

import pytest

from twolane.errors import UnavailableError
from twolane.router.router import Router
from twolane.router.store import Ask, LocalStore, Verdict
from twolane.router.testing.client import ask, message, play, resume
from twolane.router.testing.cluster import ScriptedCluster
from twolane.v1 import inference_pb2

SLOW_S = 1.0


def test_request_that_the_store_admits_too_late_is_refused_and_releases_its_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        store = router._dispatcher.board.store
        assert isinstance(store, LocalStore)
        admit = store.admit

        async def late(asked: Ask) -> Verdict:
            await asyncio.sleep(SLOW_S)
            return await admit(asked)

        monkeypatch.setattr(store, "admit", late)
        asking = asyncio.create_task(ask(router, message([1, 2], max_tokens=4)))
        await asyncio.sleep(SLOW_S / 2)
        router.end_answers()
        assert isinstance((await asking).error, UnavailableError)
        assert not len(store)
        assert router.status().counters["refused.unavailable"] == 1

    play(script)


def test_answer_whose_rows_are_found_too_late_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async def late(*_: object) -> tuple[None, None]:
            await asyncio.sleep(SLOW_S)
            return None, None

        monkeypatch.setattr(router._takeovers, "take", late)
        wanted = inference_pb2.ResumeRequest(
            submission_id="5" * 32, resume_token=b"0123456789abcdef", takeover=1
        )
        answer = resume(router, wanted)
        resuming = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(SLOW_S / 2)
        router.end_answers()
        with pytest.raises(UnavailableError, match="stopping"):
            await resuming

    play(script)


def test_request_that_waits_for_a_worker_is_refused_at_once() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = asyncio.create_task(ask(router, message([1, 2], max_tokens=4)))
        await asyncio.sleep(SLOW_S)
        router.end_answers()
        async with asyncio.timeout(SLOW_S):
            error = (await asking).error
        assert isinstance(error, UnavailableError)
        assert error.message == "the router is stopping"

    play(script, ())
