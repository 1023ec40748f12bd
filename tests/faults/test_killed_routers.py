"""Routers are killed under SDK streams: every answer comes whole, and is the one that it would
have been. `make soak-routers` is the long form, and says how long the gaps are."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster.router_kills_run import RouterKills, kill_cluster

# A busy machine stops a worker for seconds: it is not to be suspected then, time and again.
PATIENT = {"heartbeat_s": 0.2, "suspicion_s": 10.0, "lease_s": 10.0}


@pytest.mark.timeout(300)
async def test_streams_survive_their_routers_also_without_a_store_and_with_a_worker_lost(
    tmp_path: Path,
) -> None:
    with kill_cluster(tmp_path, PATIENT) as (cluster, redis):
        kills = RouterKills(cluster, redis, n_streams=12)
        seen = await kills.run(n_kills=3, most=12, shows=lambda seen: seen.stopped_after_takeover)
    assert seen.kills_without_store
    assert seen.kills_with_a_worker
    assert seen.takeovers
    assert seen.stopped_after_takeover
