"""Several routers of one cluster on one machine, as `twolane up --routers` starts them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from twolane import Client, TwolaneError
from twolane.admin import AdminClient
from twolane.status import ClusterStatus
from twolane.testing import LocalCluster, start_local

N = 3
NAMES = [f"router-{i}" for i in range(N)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_local(engine="fake", routers=N, heartbeat_s=0.2, suspicion_s=0.6) as cluster:
        wait_until(lambda: all(not r.unreached for r in cluster.status().routers), "all are there")
        yield cluster


def wait_until(holds: Callable[[], object], what: str, within_s: float = 60.0) -> None:
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.02)


def listening(pid: int) -> set[int]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def sockets(cluster: LocalCluster) -> list[str]:
    return [cluster.wait_for("started", name)["admin"] for name in NAMES]


def statuses(cluster: LocalCluster) -> list[ClusterStatus]:
    """As each router tells it."""
    found = []
    for endpoint in sockets(cluster):
        with AdminClient(endpoint) as admin:
            found.append(admin.status())
    return found


def test_routers_share_the_clients_ports_and_nothing_else(cluster: LocalCluster) -> None:
    ports = [listening(cluster.pid(name)) for name in NAMES]
    door = int(cluster.endpoint.rpartition(":")[2])
    shared = set.intersection(*ports)
    assert door in shared
    assert len(shared) == 2, "gRPC and HTTP"
    own = [its - shared for its in ports]
    assert sum(map(len, own)) == len(set.union(*own)) >= 2 * N
    with ExitStack() as stack:
        for i in range(12):
            client = stack.enter_context(Client(cluster.endpoint))
            assert len(client.generate(f"{i}", max_tokens=3).tokens) == 3


def test_every_router_tells_of_all(cluster: LocalCluster) -> None:
    for name, status in zip(NAMES, statuses(cluster), strict=True):
        assert status.router_id == status.routers[0].router_id == name
        assert sorted(router.router_id for router in status.routers) == NAMES
        assert {router.endpoint for router in status.routers} == {cluster.endpoint}
        assert not any(router.unreached for router in status.routers)
        assert {worker.state for worker in status.workers} == {"alive"}


def test_a_request_is_seen_and_cancelled_at_whichever_router_it_is_asked_for(
    cluster: LocalCluster,
) -> None:
    with ExitStack() as stack:
        stack.enter_context(stopped(cluster, "decode-0"))  # so that no answer ends by itself
        streams = []
        for i in range(6):  # connections are spread over the routers
            client = stack.enter_context(Client(cluster.endpoint))
            stream = client.stream("x", max_tokens=4000, request_id=f"r{i}")
            next(iter(stream))
            streams.append(stream)
        for status in statuses(cluster):
            assert {request.request_id for request in status.requests} == {
                f"r{i}" for i in range(6)
            }
        ids = [request.submission_id for request in cluster.status().requests]
        other = stack.enter_context(Client(cluster.endpoint))
        for _ in range(3):  # a client is at one router: new ones, at others
            found = stack.enter_context(Client(cluster.endpoint)).status(ids)
            assert {submission.submission_id for submission in found.submissions} == {*ids}
        for i in range(6):
            assert other.cancel(f"r{i}"), f"r{i}"
        for stream in streams:
            with pytest.raises(TwolaneError, match="cancelled"):
                stream.completion()
        assert not other.cancel("r0")


@contextmanager
def stopped(cluster: LocalCluster, worker_id: str) -> Iterator[None]:
    """Until the routers have it back."""
    cluster.kill(worker_id, signal.SIGSTOP)
    try:
        yield
    finally:
        cluster.kill(worker_id, signal.SIGCONT)
        wait_until(lambda: all_are_alive(cluster), "all routers have the worker back")


def all_are_alive(cluster: LocalCluster) -> bool:
    states = {worker.state for status in statuses(cluster) for worker in status.workers}
    return states == {"alive"}


def test_a_worker_that_drains_gets_nothing_from_any_router(cluster: LocalCluster) -> None:
    first, *_ = sockets(cluster)
    with AdminClient(first) as admin:
        admin.drain("decode-0")
        for status in statuses(cluster):
            states = {worker.worker_id: worker.state for worker in status.workers}
            assert states["decode-0"] == "draining", status.router_id
        admin.drain("decode-0", undo=True)
        wait_until(lambda: all_are_alive(cluster), "all give it work again")


def test_a_router_that_dies_comes_back_at_the_same_ports_while_the_others_answer(
    cluster: LocalCluster,
) -> None:
    before, n_events = listening(cluster.pid("router-1")), len(cluster.events)
    os.kill(cluster.pid("router-1"), signal.SIGKILL)
    cluster.wait_for("died", "router-1", after=n_events)
    with Client(cluster.endpoint) as client:
        assert len(client.generate("y", max_tokens=3).tokens) == 3
    cluster.wait_for("started", "router-1", after=n_events)
    assert listening(cluster.pid("router-1")) == before
    wait_until(lambda: all_are_alive(cluster), "the new one has found the workers")
