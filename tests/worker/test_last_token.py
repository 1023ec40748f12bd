"""A row whose last token is being sampled needs no page for it: it takes none, and preempts
nobody."""

from __future__ import annotations

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.params import SamplingParams
from twolane.worker.attempts.attempt_id import AttemptId


@pytest.mark.parametrize("roles", ["pd", "p d"])
def test_rows_whose_promised_pages_fit_are_not_preempted_at_their_last_token(
    play: Play, roles: str
) -> None:
    """Two rows of 16 tokens with 17 to come: 32 positions are computed, 2 pages each. The pool has
    those 4 pages, all promised, so nobody is in anybody's way."""
    params = SamplingParams(max_tokens=17, seed=7)

    async def scene(town: WorkerCluster) -> None:
        engine = FakeEngineConfig(n_pages=4)
        if roles == "pd":
            p = d = town.add("w", "pd", engine=engine)
        else:
            p, d = town.add("p", "p"), town.add("d", "d", engine=engine)
        rows = [AttemptId("a", 1), AttemptId("b", 1)]
        for i, attempt in enumerate(rows):
            prompt = [(7 * j + i) % 251 for j in range(16)]
            town.router.assign(attempt, prompt, prefill=p, decode=d, params=params)
        ends = {"FINISHED", "PREEMPTED"}
        await town.router.wait_for(lambda: all(ends & {*town.router.kinds(a)} for a in rows))
        assert [town.router.kinds(a)[-1] for a in rows] == ["FINISHED", "FINISHED"]
        for i, attempt in enumerate(rows):
            prompt = [(7 * j + i) % 251 for j in range(16)]
            assert town.router.answer(attempt) == expected_answer(prompt, params, 17)
        await town.settle(0.5)

    play(scene)


def test_a_row_that_ends_by_length_pushes_nobody_out(play: Play) -> None:
    """The older row's last token comes at a page's border; the younger has most of its answer
    ahead."""

    async def scene(town: WorkerCluster) -> None:
        w = town.add("w", "pd", engine=FakeEngineConfig(n_pages=5))
        old, young = AttemptId("old", 1), AttemptId("young", 1)
        town.router.assign(
            old, range(16), prefill=w, decode=w, params=SamplingParams(max_tokens=17, seed=7)
        )
        town.router.assign(
            young, range(30, 46), prefill=w, decode=w, params=SamplingParams(max_tokens=33, seed=7)
        )
        ends = {"FINISHED", "PREEMPTED"}
        await town.router.wait_for(
            lambda: all(ends & {*town.router.kinds(a)} for a in (old, young))
        )
        assert [town.router.kinds(a)[-1] for a in (old, young)] == ["FINISHED", "FINISHED"]

    play(scene)
