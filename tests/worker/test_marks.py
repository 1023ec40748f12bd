"""Pages that are handed to the transfer when their step is submitted: before they are computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.worker.conftest import Scene, WorkerCluster, build_town
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.engine.step import RowResult, RowWork
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.testing.memory import MemoryMark
from twolane.params import SamplingParams
from twolane.rpc.params import params_to_proto
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.steps.step_runner import LandedStep, OnSubmitted
from twolane.worker.testing import DECODE, PREFILL
from twolane.worker.worker import Worker

A, A2, B = AttemptId("r", 1), AttemptId("r", 2), AttemptId("other", 1)
PROMPT = [(i * 31 + 5) % 251 for i in range(500)]
OTHER = [(i * 29 + 7) % 251 for i in range(490)]
N_PAGES = 32  # of the prompt
PARAMS = SamplingParams(max_tokens=30, seed=7)
CHUNKS = StepLimits(step_tokens=40, decode_rows=8)  # two pages and a half
SLOW = FakeEngineConfig(n_pages=256, step_overhead_s=0.2)
Play = Callable[[Scene], None]


@pytest.fixture(params=[0, 1], ids=["in turn", "a step ahead"])
def steps_ahead(request: pytest.FixtureRequest) -> int:
    n: int = request.param
    return n


@pytest.fixture(params=[False, True], ids=["receiver writes", "sender writes"])
def play(request: pytest.FixtureRequest, steps_ahead: int) -> Play:
    def run(scene: Scene) -> None:
        async def main() -> None:
            async with build_town(None, request.param) as town:
                town.steps_ahead, town.has_marks = steps_ahead, True
                await scene(town)

        with virtual_time_runner() as runner:
            runner.run(main())

    return run


@dataclass(frozen=True)
class Offer:
    key: Key
    first: int
    n: int
    mark: MemoryMark | None
    was_past: bool  # then


class Spy:
    """Hears what a prefill worker's sender is told. `pending`: marks that were not passed when a
    row was given up."""

    def __init__(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        role = worker.roles.prefill
        assert role is not None
        self.offers: list[Offer] = []
        self.pending: list[bool] = []
        self._offer, self._abandon = role.sender.offer, role.sender.abandon
        monkeypatch.setattr(role.sender, "offer", self.offer)
        monkeypatch.setattr(role.sender, "abandon", self.abandon)

    def offer(
        self,
        key: Key,
        first: int,
        pages: Sequence[int],
        now: float,
        after: MemoryMark | None = None,
    ) -> None:
        self.offers.append(Offer(key, first, len(pages), after, bool(after and after.is_past)))
        self._offer(key, first, pages, now, after=after)

    def abandon(self, key: Key, reason: str, now: float) -> None:
        mark = self.offers[-1].mark
        self.pending.append(mark is not None and not mark.is_past)
        self._abandon(key, reason, now)

    async def hears(self, n: int) -> None:
        """That many offers."""
        while len(self.offers) < n:
            await asyncio.sleep(0.001)

    def is_each_once(self, n_pages: int = N_PAGES) -> bool:
        spans = [(offer.first, offer.first + offer.n) for offer in self.offers]
        return [page for span in spans for page in range(*span)] == list(range(n_pages))


def start(town: WorkerCluster, p: Worker, d: Worker, attempt: AttemptId = A) -> None:
    prompt = PROMPT if attempt is A else OTHER
    town.router.assign(attempt, prompt, prefill=p, decode=d, params=PARAMS)


def answer(prompt: Sequence[int]) -> list[int]:
    return expected_answer(prompt, PARAMS, 30)


def test_pages_are_offered_before_they_are_computed_and_each_once(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", engine=SLOW, limits=CHUNKS), town.add("d", "d")
        spy = Spy(p, monkeypatch)
        start(town, p, d)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        assert spy.is_each_once()
        assert len(spy.offers) == 13, "one a chunk: 2, 3, 2, 3, ... pages"
        assert all(offer.mark is not None and not offer.was_past for offer in spy.offers)
        assert town.router.answer(A) == answer(PROMPT)
        await town.settle(0.2)

    play(scene)


def test_pages_of_the_prefix_index_wait_for_no_mark(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d, d2 = town.add("p", "p", limits=CHUNKS), town.add("d", "d"), town.add("d2", "d")
        start(town, p, d)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A))
        spy = Spy(p, monkeypatch)
        again = AttemptId("again", 1)
        prompt = [*PROMPT[:320], *OTHER[:100]]
        town.router.assign(again, prompt, prefill=p, decode=d2, params=PARAMS)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(again))
        first, *others = spy.offers
        assert (first.n, first.mark) == (20, None)
        assert all(offer.mark is not None for offer in others)
        assert spy.is_each_once(27)
        assert town.router.answer(again) == answer(prompt)
        await town.settle(0.2)

    play(scene)


def test_row_whose_step_fails_after_its_pages_were_offered_is_dropped_by_both(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p", engine=SLOW, limits=CHUNKS), town.add("d", "d")
        engine_run = p._runner.run

        async def run(work: Sequence[RowWork], told: OnSubmitted) -> LandedStep:
            results = (await engine_run(work, told)).results
            fails = [w.token_ids[0] == PROMPT[0] and w.start + w.n_new == 200 for w in work]
            changed = [
                RowResult(r.row, error="logits are not finite") if failed else r
                for failed, r in zip(fails, results, strict=True)
            ]
            return LandedStep(changed)

        monkeypatch.setattr(p._runner, "run", run)
        spy = Spy(p, monkeypatch)
        start(town, p, d)
        await town.router.wait_for(lambda: "FAILED" in town.router.kinds(A, PREFILL))
        assert spy.offers[4].first + spy.offers[4].n == 12, "those of the step that failed, too"
        await town.router.wait_for(lambda: bool(town.router.kinds(A, DECODE)))
        assert town.router.kinds(A, DECODE) == ["DEAD"]
        await town.settle(0.5)
        assert p.load().pages.cached == d.load().pages.cached == 0
        start(town, p, d, B)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(B))
        assert town.router.answer(B) == answer(OTHER)
        await town.settle(0.5)

    play(scene)


def test_row_cancelled_before_its_step_is_done_leaves_no_page_and_writes_into_no_others(
    play: Play, steps_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", engine=replace(SLOW, n_pages=40), limits=CHUNKS)
        d = town.add("d", "d", engine=FakeEngineConfig(n_pages=40))
        spy = Spy(p, monkeypatch)
        start(town, p, d)
        await spy.hears(5)
        town.router.cancel(A, p, d)
        start(town, p, d, B)  # there is room for one of them, here and there
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(B))
        assert spy.pending == [steps_ahead == 1], "given up amid its step, where that can be"
        assert town.router.answer(B) == answer(OTHER)
        assert town.router.kinds(A, PREFILL) == ["FINISHED"]
        assert "JOINED" not in town.router.kinds(A)
        await town.settle(0.5)

    play(scene)


def test_row_that_goes_elsewhere_amid_a_step_waits_for_its_marks_there(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p = town.add("p", "p", engine=SLOW, limits=CHUNKS)
        d, d2 = town.add("d", "d"), town.add("d2", "d")
        spy = Spy(p, monkeypatch)
        start(town, p, d)
        await spy.hears(5)
        assign = worker_pb2.Assign(
            key=A2.key,
            row=town.router.row_number(A2),
            roles=[DECODE],
            token_ids=PROMPT,
            n_prompt=len(PROMPT),
            prefill=p.address,
            decode=d2.address,
            growth_tokens=30,
        )
        assign.sampling.CopyFrom(params_to_proto(PARAMS))
        town.router.send(d2, worker_pb2.SessionRequest(assign=assign))
        town.router.retarget(p, A, A2, d2.address)
        town.router.cancel(A, d)
        await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(A2))
        assert spy.is_each_once()
        assert len({offer.key for offer in spy.offers}) == 2
        assert town.router.answer(A2) == answer(PROMPT)
        assert "JOINED" not in town.router.kinds(A)
        await town.settle(0.5)

    play(scene)
