"""Routers on several hosts, which are processes on the loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, Launcher, wait_until
from twolane import AdminClient
from twolane.status import ClusterStatus

NAMES = ["router-0", "router-1", "router-2", "router-3"]
POOLS = [{"role": "prefill"}, {"role": "decode"}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[AgentCluster]:
    """Two routers on each of two hosts, which on one machine share the clients' port, too."""
    timing = {"heartbeat_s": 0.3, "suspicion_s": 1.0, "lease_s": 2.0}
    at = ("127.0.0.1", "127.0.0.2")
    of_hosts = [{"routers": 2, "bind_host": host, "advertise_host": host} for host in at]
    with AgentCluster((1, 1), POOLS, of_hosts=of_hosts, timing=timing) as cluster:
        yield cluster


def as_told_by(router: str, launcher: Launcher) -> ClusterStatus:
    with AdminClient(launcher.until("started", router)["admin"]) as admin:
        return admin.status()


def knows_all(router: str, launcher: Launcher) -> bool:
    status = as_told_by(router, launcher)
    is_whole = sorted(its.router_id for its in status.routers if not its.unreached) == NAMES
    return is_whole and [worker.state for worker in status.workers] == ["alive", "alive"]


def test_routers_of_all_hosts_serve_know_each_other_and_are_adopted_and_started_again(
    cluster: AgentCluster,
) -> None:
    launcher = cluster.launcher()
    launcher.until("ready")
    assert cluster.answers()
    for name in NAMES:
        wait_until(partial(knows_all, name, launcher))
    before = cluster.pids()
    assert {*NAMES} < {*before}
    launcher.kill()
    again = cluster.launcher()
    again.until("ready")
    assert cluster.pids() == before, "nothing was started anew"
    n_events = len(again.events)
    os.kill(before["router-3"], signal.SIGKILL)
    again.until("started", "router-3", after=n_events)
    for name in NAMES:
        wait_until(partial(knows_all, name, again))
