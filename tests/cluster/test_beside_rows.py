"""Short prompts are computed where they are decoded, beside a worker that only prefills."""

from __future__ import annotations

import asyncio

from tests.cluster.waiting import play
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.deploy.virtual_cluster.worker import Outcome
from twolane.engine.fake import expected_answer
from twolane.params import SamplingParams
from twolane.router.config import AdmissionConfig

SHORT, LONG = 40, 900
BESIDE = AdmissionConfig(beside_rows_s=0.02)  # a long prompt takes longer, also beside one row
PARAMS = SamplingParams(max_tokens=5, seed=1)


async def answers(cluster: VirtualCluster, prompts: list[list[int]]) -> list[Outcome]:
    found = await asyncio.gather(*(cluster.outcome(prompt, PARAMS) for prompt in prompts))
    for one, prompt in zip(found, prompts, strict=True):
        assert one.tokens == expected_answer(prompt, PARAMS, 5)
    return found


def test_only_short_prompts_are_computed_beside_rows_and_these_move_no_page() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await answers(cluster, [[salt] * SHORT for salt in range(8)])  # the pace becomes known
        await asyncio.sleep(2.0)
        prompts = [[nth] * (SHORT if nth % 2 else LONG) for nth in range(100, 120)]
        found = await answers(cluster, prompts)
        beside = [one for one in found if one.ledger.prefill_worker == "pd1"]
        assert beside
        assert all(one.ledger.prompt_tokens == SHORT for one in beside)
        assert all(one.ledger.decode_worker == "pd1" for one in found)
        assert not any(one.ledger.transfer_pages for one in beside)
        await cluster.settle()

    play(Shape(roles=("p", "pd"), n_pages=2048, admission=BESIDE), scene)


def test_a_conversation_goes_on_where_it_was_decoded() -> None:
    """Its next prompt is long, but little of it is not in the cache there."""

    async def scene(cluster: VirtualCluster) -> None:
        await answers(cluster, [[salt] * SHORT for salt in range(8)])
        first = [nth % 250 for nth in range(LONG)]
        (begun,) = await answers(cluster, [first])
        assert begun.ledger.prefill_worker == "p0"
        await asyncio.sleep(2.0)
        others = [[salt] * LONG for salt in range(200, 204)]  # p0 is busy with these
        *_, goes_on = await answers(cluster, [*others, [*first, *begun.tokens, 9, 9, 9]])
        assert goes_on.ledger.prefill_worker == "pd1"
        assert goes_on.ledger.cached_tokens >= LONG - 16
        await cluster.settle()

    play(Shape(roles=("p", "pd"), n_pages=2048, admission=BESIDE), scene)
