"""A prefill worker that names its pages wrongly: nothing of it enters the index, nobody ends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import expected_answer
from twolane.kvtransfer.key import Key
from twolane.params import SamplingParams
from twolane.worker.attempts.attempt_id import AttemptId

PARAMS = SamplingParams(max_tokens=40, seed=7)
WRONG, RIGHT, OTHER = (AttemptId(name, 1) for name in ("wrong", "right", "other"))
PROMPTS = {
    x: [i * factor % 251 for i in range(100)] for x, factor in ((WRONG, 3), (RIGHT, 5), (OTHER, 7))
}


def test_reserve_with_the_hashes_of_another_prompt_fails_its_row_alone(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        start = partial(town.router.assign, prefill=p, decode=d, params=PARAMS)
        start(OTHER, PROMPTS[OTHER])
        await town.router.wait_for(lambda: bool(town.router.finish_of(OTHER)))
        lies = list(d.context.pages._page_of)[:6]  # of pages that are in the decode worker's index
        assert p.roles.prefill is not None
        sender = p.roles.prefill.sender
        true = sender.open

        def open_wrongly(key: Key, *, prefix_hashes: Any, **row: Any) -> None:
            is_wrong = key[0] == WRONG.submission_id
            true(key, prefix_hashes=lies if is_wrong else prefix_hashes, **row)

        sender.open = open_wrongly  # type: ignore[method-assign]
        for attempt in (RIGHT, WRONG):
            start(attempt, PROMPTS[attempt])
        await town.router.wait_for_kind(WRONG, "DEAD", within_s=1.0)
        await town.router.wait_for(lambda: bool(town.router.finish_of(RIGHT)))
        assert {row.reason for row in town.router.rows[WRONG]} == {"mismatch"}
        assert town.router.answer(RIGHT) == expected_answer(PROMPTS[RIGHT], PARAMS, 40)
        await asyncio.sleep(0.1)
        assert not town.lives["d"].done()
        town.router.cancel(WRONG, p, d)
        await town.settle()

    play(scene)
