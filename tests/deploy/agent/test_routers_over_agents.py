"""Routers on several hosts, which are processes on the loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, Launcher, stopped, wait_until
from tests.timing import PATIENT
from twolane import AdminClient, DeadlineError, UnavailableError
from twolane.status import ClusterStatus

NAMES = ["router-0", "router-1", "router-2", "router-3"]
POOLS = [{"role": "prefill"}, {"role": "decode"}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[AgentCluster]:
    """Two routers on each of two hosts, which on one machine share the clients' port, too."""
    at = ("127.0.0.1", "127.0.0.2")
    of_hosts = [{"routers": 2, "bind_host": host, "advertise_host": host} for host in at]
    with AgentCluster((1, 1), POOLS, of_hosts=of_hosts, timing=PATIENT) as cluster:
        yield cluster


def as_told_by(router: str, launcher: Launcher) -> ClusterStatus:
    with AdminClient(launcher.until("started", router)["admin"]) as admin:
        return admin.status()


def knows_all(router: str, launcher: Launcher) -> bool:
    try:
        status = as_told_by(router, launcher)
    except (UnavailableError, DeadlineError):  # it has just started, or is busy
        return False
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
    for name in NAMES:
        again.until("started", name)
    n_events = again.n_events()
    os.kill(before["router-3"], signal.SIGKILL)
    again.until("started", "router-3", after=n_events)
    for name in NAMES:
        wait_until(partial(knows_all, name, again))


def test_launcher_that_attaches_while_a_host_is_silent_adopts_its_routers_when_it_is_back(
    cluster: AgentCluster,
) -> None:
    former = cluster.launcher()
    former.until("ready")
    before = cluster.pids()
    former.kill()
    with stopped(psutil.Process(cluster.agents["node-b"].pid)):
        launcher = cluster.launcher()
        launcher.until("ready")
        launcher.until("restarting", "router-2")
        assert cluster.answers(), "the routers of the other host serve"
        assert "started" not in launcher.kinds("router-2")
    for name in NAMES:
        launcher.until("started", name)
    for name in NAMES:
        wait_until(partial(knows_all, name, launcher))
    assert cluster.pids() == before, "nothing was started anew"
