"""In exact mode a request's tokens and log-probabilities do not depend on anything but itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.progress import track

from benchmarks.results import save
from tests.cluster.exact_runner import check, cluster_for
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
async def test_every_bit_is_the_same_in_the_full_product(tmp_path: Path) -> None:
    groups = by_setup(everything())
    n_checked = 0
    for setup in track(groups, description="clusters"):
        with cluster_for(setup) as cluster:
            for situation in groups[setup]:
                await check(cluster, situation)
                n_checked += 1
    figures = {"situations": n_checked, "clusters": len(groups), "dimensions": dict(DIMENSIONS)}
    saved = save("exact_full_product", figures)
    assert json.loads(saved.read_text())
