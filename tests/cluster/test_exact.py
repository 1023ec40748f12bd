"""In exact mode a request's tokens and log-probabilities do not depend on anything but itself."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
from rich.progress import track

from benchmarks.results import save
from tests.cluster.exact_runner import FULL, PROBE_LENGTHS, check, cluster_for
from tests.cluster.situations import DIMENSIONS, Setup, by_setup, everything, pairs, pairwise

GROUPS = by_setup(pairwise())


@pytest.mark.timeout(240)
@pytest.mark.parametrize("setup", GROUPS, ids=str)
async def test_every_bit_is_the_same_in_every_situation(setup: Setup) -> None:
    with cluster_for(setup) as cluster:
        for situation in GROUPS[setup]:
            await check(cluster, situation)


def test_the_situations_above_bring_every_two_values_together() -> None:
    assert set().union(*map(pairs, pairwise())) == set().union(*map(pairs, everything()))
    assert len(pairwise()) < len(everything()) / 10


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_bit_is_the_same_in_the_full_product() -> None:
    """As many clusters at once as there are cores for; the figures are saved as they grow."""
    groups = by_setup(everything())

    def check_all(setup: Setup) -> int:
        async def run() -> None:
            with cluster_for(setup, FULL) as cluster:
                for situation in groups[setup]:
                    await check(cluster, situation, FULL)

        asyncio.run(run())
        return len(groups[setup])

    started_s = time.monotonic()
    n_equal = 0
    failures: list[BaseException] = []
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) * 5 // 8)) as pool:
        running = [pool.submit(check_all, setup) for setup in groups]
        for done in track(as_completed(running), "clusters", total=len(groups)):
            failure = done.exception()  # the others go on: each of them takes minutes
            if failure is None:
                n_equal += done.result()
            else:
                failures.append(failure)
            figures = {
                "situations_equal": n_equal,
                "situations": len(everything()),
                "clusters_failed": len(failures),
                "took_s": round(time.monotonic() - started_s),
                "tokens_compared_each": FULL.tokens * len(PROBE_LENGTHS),
                "dimensions": dict(DIMENSIONS),
            }
            save("exact_full_product", figures)
    if failures:
        raise BaseExceptionGroup("clusters that failed", failures)
    assert n_equal == len(everything())
