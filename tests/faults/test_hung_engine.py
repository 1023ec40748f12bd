"""An engine that hangs in a real process: requests go elsewhere, it is killed and comes back."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.real_cluster import settled
from tests.own_time import own_time
from twolane.deploy.bundled import model_path
from twolane.testing import LocalCluster, start_local

BOUND_S = 8.0  # of a request: its worker's step is late after 1.7 s


def told(cluster: LocalCluster, after: int) -> list[tuple[str, str]]:
    return [(event["kind"], event.get("name", "")) for event in cluster.events[after:]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["decode-0", pytest.param("prefill-0", marks=pytest.mark.soak)])
async def test_worker_that_hangs_costs_seconds_and_is_restarted(name: str, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    model = tmp_path / "model"
    shutil.copytree(model_path(), model)
    facts = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**facts, "fake_hangs_by_file": str(hang)}))
    with start_local(
        model=model, engine="fake", prefill=2, decode=2, suspicion_s=1.0, heartbeat_s=0.3
    ) as cluster:
        async with cluster.aclient() as client:

            async def ask(i: int) -> float:
                begun = time.monotonic()
                await client.generate(token_ids=[3 + i] * 40, max_tokens=8, timeout_s=60)
                return time.monotonic() - begun

            await asyncio.gather(*map(ask, range(16)))  # first steps have more time
            hang.write_text(str(cluster.pid(name)))
            with own_time() as took:
                took_s = await asyncio.gather(*map(ask, range(16)))
            assert max(took_s) > 1.0
            assert took.s() < BOUND_S
            fenced = await asyncio.to_thread(cluster.wait_for, "fenced", name)
            assert "step has not ended" in fenced["text"]
            await settled(cluster, 4, within_s=15.0)
            n_events = len(cluster.events)
            with own_time() as took:
                await asyncio.gather(*map(ask, range(8)))
            assert took.s() < 1.5, "it takes part again, and hangs no more"
            assert ("fenced", name) not in told(cluster, after=n_events), "it has hung once"
