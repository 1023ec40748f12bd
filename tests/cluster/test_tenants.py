"""Several tenants on one cluster of real workers, under virtual time."""

from __future__ import annotations

import pytest

from twolane.deploy.virtual_cluster.cluster import Shape, virtual_cluster
from twolane.engine.fake import expected_answer
from twolane.params import SamplingParams
from twolane.router.testing.client import client_of
from twolane.testing.virtual_time import virtual_time_runner

PROMPT = [n % 251 for n in range(300)]
PARAMS = SamplingParams(max_tokens=5, seed=1)
RED, BLUE = client_of("red"), client_of("blue")


@pytest.mark.parametrize("roles", [("p", "d"), ("pd",)], ids=["disaggregated", "colocated"])
def test_pages_of_a_tenant_are_never_found_by_the_prompt_of_another(roles: tuple[str, ...]) -> None:
    async def main() -> None:
        async with virtual_cluster(Shape(roles=roles)) as cluster:
            cached = [
                await cluster.outcome(PROMPT, PARAMS, caller=caller)
                for caller in (RED, RED, BLUE, BLUE, RED)
            ]
            assert all(one.tokens == expected_answer(PROMPT, PARAMS, 5) for one in cached)
            n_cached = [one.ledger.cached_tokens for one in cached]
            assert [n > 0 for n in n_cached] == [False, True, False, True, True], n_cached
            await cluster.settle()

    with virtual_time_runner() as runner:
        runner.run(main())
