"""A cluster on a real Ray over two hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.fake_hosts import Network
from tests.hosts.load import load_on, until
from tests.hosts.ray_hosts import RayHosts


@pytest.fixture
def ray(network: Network, tmp_path: Path) -> Iterator[RayHosts]:
    ray = RayHosts([network.host("a"), network.host("b")], tmp_path)
    ray.start()
    yield ray


async def test_a_cluster_over_two_hosts_answers_and_leaves_nothing(ray: RayHosts) -> None:
    a, b = ray.hosts
    before = {host: len(host.pids()) for host in ray.hosts}
    events = ray.up(
        a, f"--engine fake --prefill 1 --decode 1 --host {a.ip} --ports 7300-7399 --insecure"
    )
    print(*events, sep="\n")
    assert events[-1]["kind"] == "ready"
    async with load_on(events[-1]["endpoint"], streams=3) as load:
        await until(load, 6)
    load.check(silence_s=20)
