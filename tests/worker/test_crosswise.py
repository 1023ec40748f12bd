"""Two workers of both roles that each hold a finished prompt for the other: every way out."""

from __future__ import annotations

import asyncio

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.params import SamplingParams
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.testing import PREFILL
from twolane.worker.worker import Worker

POOL = FakeEngineConfig(n_pages=40)
PARAMS = SamplingParams(max_tokens=20, seed=7)
X, Y, X2 = AttemptId("x", 1), AttemptId("y", 1), AttemptId("x", 2)
PROMPTS = {X: [i % 251 for i in range(400)], Y: [i * 7 % 251 for i in range(400)]}  # 25 pages each
ANSWERS = {x: expected_answer(prompt, PARAMS, 20) for x, prompt in PROMPTS.items()}


def crosswise(town: WorkerCluster, growth_tokens: int = 20) -> tuple[Worker, Worker]:
    a, b = town.add("a", "pd", engine=POOL), town.add("b", "pd", engine=POOL)
    for attempt, prefill, decode in ((X, a, b), (Y, b, a)):
        town.router.assign(
            attempt, PROMPTS[attempt], prefill=prefill, decode=decode, params=PARAMS,
            growth_tokens=growth_tokens,
        )  # fmt: skip
    return a, b


def keep(town: WorkerCluster, worker: Worker, attempt: AttemptId = X) -> None:
    """The router: decode it where it is held."""
    following = AttemptId(attempt.submission_id, attempt.number + 1)
    town.router.retarget(worker, attempt, following, worker.address)


def test_held_row_that_gets_no_pages_is_told_within_two_seconds_far_below_the_cap(
    play: Play,
) -> None:
    async def scene(town: WorkerCluster) -> None:
        crosswise(town)
        for attempt in (X, Y):
            await town.router.wait_for_kind(attempt, "UNPLACED", within_s=2.0)

    play(scene)


def test_worker_decodes_a_row_that_it_holds_when_the_router_says_so(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        a, b = crosswise(town)
        await town.router.wait_for_kind(X, "UNPLACED")
        keep(town, a)
        town.router.cancel(X, b)
        await town.router.wait_for(lambda: bool(town.router.finish_of(X2)), within_s=2.0)
        await town.router.wait_for(lambda: bool(town.router.finish_of(Y)), within_s=2.0)
        assert town.router.kinds(X, PREFILL) == ["UNPLACED", "RETARGETED"]
        assert town.router.kinds(X2) == ["HANDED_OVER", "JOINED", "FINISHED"]
        assert town.router.answer(X) == ANSWERS[X][:1]
        assert town.router.answer(X2) == ANSWERS[X]
        assert town.router.answer(Y) == ANSWERS[Y]
        await town.settle()

    play(scene)


def test_worker_keeps_a_row_that_it_is_still_computing(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        slow = FakeEngineConfig(n_pages=40, step_overhead_s=0.2)
        limits = StepLimits(step_tokens=100, decode_rows=8)
        a, b = town.add("a", "pd", engine=slow, limits=limits), town.add("b", "pd", engine=POOL)
        town.router.assign(X, PROMPTS[X], prefill=a, decode=b, params=PARAMS)
        await asyncio.sleep(0.5)
        keep(town, a)
        town.router.cancel(X, b)
        await town.router.wait_for(lambda: bool(town.router.finish_of(X2)), within_s=10.0)
        assert town.router.answer(X2) == ANSWERS[X]
        await town.settle()

    play(scene)


def test_worker_without_room_for_the_growth_says_that_it_does_not_keep_the_row(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        params = SamplingParams(max_tokens=500, seed=7)
        a = town.add("a", "pd", engine=FakeEngineConfig(n_pages=26))
        b = town.add("b", "pd", engine=FakeEngineConfig(n_pages=80))
        blocker = [1] * 1000
        town.router.assign(Y, blocker, prefill=b, decode=b, params=params)
        town.router.assign(X, PROMPTS[X], prefill=a, decode=b, params=params)
        await town.router.wait_for(lambda: bool(town.router.tokens[X]))
        keep(town, a)
        await town.router.wait_for_kind(X, "GONE", within_s=1.0)
        town.router.cancel(X, a, b)
        town.router.cancel(Y, b)
        await town.settle()

    play(scene)


def test_one_of_two_gives_its_row_up_when_nobody_moves_them(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        a, b = crosswise(town)
        over = {X: ("DEAD", a, b), Y: ("DEAD", b, a)}
        await town.router.wait_for(
            lambda: any("DEAD" in town.router.kinds(x, PREFILL) for x in over), within_s=9.0
        )
        lost = next(x for x in over if "DEAD" in town.router.kinds(x, PREFILL))
        other = Y if lost == X else X
        assert town.router.rows[lost][-1].reason == "held"
        await town.router.wait_for(lambda: bool(town.router.finish_of(other)), within_s=1.0)
        assert town.router.answer(other) == ANSWERS[other]
        town.router.cancel(lost, a, b)
        await town.settle()

    play(scene)


@pytest.mark.parametrize("roles", ["p", "pd"])
def test_row_whose_pages_nobody_wants_is_held_for_as_long_as_it_takes(
    play: Play, roles: str
) -> None:
    async def scene(town: WorkerCluster) -> None:
        a = town.add("a", roles, engine=POOL)
        b = town.add("b", "d", engine=FakeEngineConfig(n_pages=40, step_overhead_s=1.0))
        town.router.assign(Y, PROMPTS[Y], prefill=a, decode=b, params=PARAMS)
        await town.router.wait_for_kind(Y, "JOINED")
        town.router.assign(X, PROMPTS[X], prefill=a, decode=b, params=PARAMS)
        await town.router.wait_for(lambda: bool(town.router.finish_of(X)), within_s=60.0)
        assert "DEAD" not in town.router.kinds(X)
        assert town.router.answer(X) == ANSWERS[X]
        await town.settle()

    play(scene)
