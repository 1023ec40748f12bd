"""A cluster whose nodes come and go by Ray's own autoscaler, with the workers on them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.autoscaled_ray import AutoscaledRay
from tests.hosts.fake_hosts import Network
from tests.hosts.ray_hosts import wait_until
from twolane.admin import AdminClient
from twolane.v1 import acts_pb2

COME_S, GO_S = 5.0, 15.0  # on an idle machine; measured and printed, see docs/autoscaling.md
BUSY = 6.0  # how much longer it may take where others work, too
KINDS = {name: {f"twolane_{name}": 1.0} for name in ("prefill", "decode")}
pytestmark = [pytest.mark.timeout(900), pytest.mark.soak]


@pytest.fixture
def ray() -> Iterator[AutoscaledRay]:
    with tempfile.TemporaryDirectory() as log_dir, Network() as network:
        ray = AutoscaledRay(network, Path(log_dir), KINDS)
        ray.start()
        yield ray


def admin(ray: AutoscaledRay) -> AdminClient:
    (socket,) = (ray.hosts[0].root / "tmp").glob("twolane-*/admin.sock")
    return AdminClient(f"unix:{socket}")


def scale(ray: AutoscaledRay, pool: str, n: int) -> None:
    with admin(ray) as its:
        size = acts_pb2.PoolSize(pool=pool, workers=n)
        its.call("ScalePools", acts_pb2.ScalePoolsRequest(pools=[size]))


def alive(ray: AutoscaledRay) -> set[str]:
    with admin(ray) as its:
        return {w.worker_id for w in its.status().workers if w.state == "alive"}


def test_nodes_come_with_the_decision_and_go_after_the_ticket_with_their_agents(
    ray: AutoscaledRay,
) -> None:
    (a,) = ray.hosts
    ray.up_in_background(
        {
            "launcher": "ray",
            "ray": {"address": ray.address},
            "insecure": True,
            "ports": "7300-7399",
            "pools": [{"role": role, "engine": "fake"} for role in KINDS],
            "host_sets": [
                {"name": f"{name}-node", "pools": [name], "most": 3, "resources": resources}
                for name, resources in KINDS.items()
            ],
        }
    )
    ray.until_up()
    assert alive(ray) == {"prefill-0", "decode-0"}
    assert ray.n_raylets() == 2
    decided_s = time.monotonic()
    scale(ray, "decode", 2)
    came_s = ray.until_raylets(3, decided_s, COME_S * BUSY)
    three = {"prefill-0", "decode-0", "decode-1"}
    wait_until(lambda: alive(ray) == three, shows=ray._logs)
    scale(ray, "decode", 1)
    wait_until(lambda: len(alive(ray)) == 2, shows=ray._logs)  # it ends on its ticket
    went_s = ray.until_raylets(2, time.monotonic(), GO_S * BUSY)
    print(
        f"a node came {came_s:.1f} s after the decision, and went {went_s:.1f} s after the ticket"
    )
    assert alive(ray) == {"prefill-0", "decode-0"}
    ray.down(a)
    ray.until_raylets(0, time.monotonic(), GO_S * BUSY)
    assert ray.ours(a) == []
