"""Runs one request during which a fault happens, and checks that the answer is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer

PROMPT = [5, 6, 7, 8]
N = 40
TWO_BY_TWO = ("p0", "p1", "d0", "d1")


def scenario(
    at_s: float,
    fault: Callable[[Router, ScriptedCluster, str, str], None],
    workers: Any = TWO_BY_TWO,
    *,
    knobs: Any = None,
    check: Callable[[Router, ScriptedCluster], None] = lambda router, cluster: None,
    config: Any = None,
) -> None:
    """Run one request. `at_s` after its start, call `fault(router, cluster, prefill_worker,
    decode_worker)` with the ids of its workers. Assert that the answer is exact."""

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        for worker in cluster.workers.values():
            for name, value in (knobs or {}).items():
                setattr(worker, name, value)
        task = asyncio.create_task(ask(router, message(PROMPT, request_id="r", max_tokens=N)))
        await asyncio.sleep(at_s)
        (status,) = router.status().requests
        fault(router, cluster, status.prefill_worker, status.decode_worker)
        outcome = await task
        assert outcome.error is None, outcome.error
        assert outcome.tokens == expected_answer(PROMPT, N)
        assert outcome.ledger.output_tokens == N
        check(router, cluster)

    play(script, workers, config=config, clean_after_s=4.0)


def counters(router: Router) -> dict[str, int]:
    return dict(router.status().counters)
