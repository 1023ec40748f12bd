"""Several routers of one cluster on one machine, as `twolane up --routers` starts them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import psutil
import pytest

from tests.ports import router_ports
from tests.timing import PATIENT
from twolane import Client, DeadlineError, PreconditionError, TwolaneError, UnavailableError
from twolane.admin import AdminClient
from twolane.status import ClusterStatus
from twolane.testing import LocalCluster, start_local
from twolane.v1 import admin_pb2

N = 3
NAMES = [f"router-{i}" for i in range(N)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_local(engine="fake", routers=N, **router_ports(N), **PATIENT) as cluster:
        wait_until(lambda: know_each_other(cluster), "all are there")
        yield cluster


def wait_until(holds: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """The first true value of it."""
    end_s = time.monotonic() + within_s
    while not (value := holds()):
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.02)
    return value


def listening(pid: int) -> set[int]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def sockets(cluster: LocalCluster) -> list[str]:
    return [cluster.wait_for("started", name)["admin"] for name in NAMES]


def statuses(cluster: LocalCluster) -> list[ClusterStatus]:
    """As each router tells it that answers."""
    found = []
    for endpoint in sockets(cluster):
        with AdminClient(endpoint) as admin, suppress(UnavailableError, DeadlineError):
            found.append(admin.status())
    return found


def know_each_other(cluster: LocalCluster) -> bool:
    """Whether every router reaches all."""
    return [
        sorted(router.router_id for router in status.routers if not router.unreached)
        for status in statuses(cluster)
    ] == [NAMES] * N


def requests_seen(cluster: LocalCluster) -> list[set[str]]:
    """Labels, by router."""
    return [{each.request_id for each in status.requests} for status in statuses(cluster)]


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
    wait_until(lambda: know_each_other(cluster), "each reaches all")
    wait_until(lambda: all_are_alive(cluster), "all workers are alive")
    for name, status in zip(NAMES, statuses(cluster), strict=True):
        assert status.router_id == status.routers[0].router_id == name
        assert {router.endpoint for router in status.routers} == {cluster.endpoint}


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
        # A router that does not answer others in a second or two is left out: it is asked again.
        everything = {f"r{i}" for i in range(6)}
        wait_until(lambda: requests_seen(cluster) == [everything] * N, "each tells of all")
        ids: set[str] = set()
        while len(ids) < 6:
            ids |= {request.submission_id for request in cluster.status().requests}
        other = stack.enter_context(Client(cluster.endpoint))
        for _ in range(3):  # a client is at one router: new ones, at others
            client = stack.enter_context(Client(cluster.endpoint))
            wait_until(partial(finds, client, ids), "all are found")
        for name in everything:
            wait_until(partial(is_cancelled, other, name, cluster), f"{name} is cancelled")
        for stream in streams:
            with pytest.raises(TwolaneError, match="cancelled"):
                stream.completion()
        assert not other.cancel("r0")


def finds(client: Client, ids: set[str]) -> bool:
    return {its.submission_id for its in client.status([*ids]).submissions} == ids


def is_cancelled(client: Client, name: str, cluster: LocalCluster) -> bool:
    """Or was, by a call whose answer came too late."""
    if client.cancel(name):
        return True
    seen = requests_seen(cluster)
    return len(seen) == N and not any(name in each for each in seen)


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
    """For every router."""
    found = statuses(cluster)
    states = {worker.state for status in found for worker in status.workers}
    return len(found) == N and states == {"alive"}


def test_a_worker_that_drains_gets_nothing_from_any_router(cluster: LocalCluster) -> None:
    first, *_ = sockets(cluster)
    with AdminClient(first) as admin:
        admin.drain("decode-0")
        wait_until(lambda: states_of(cluster, "decode-0") == ["draining"] * N, "none gives it work")
        admin.drain("decode-0", undo=True)
        wait_until(lambda: all_are_alive(cluster), "all give it work again")


def states_of(cluster: LocalCluster, worker_id: str) -> list[str]:
    """Of that worker, by router."""
    return [
        worker.state
        for status in statuses(cluster)
        for worker in status.workers
        if worker.worker_id == worker_id
    ]


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


def test_several_routers_are_ray_actors_that_share_the_clients_ports() -> None:
    more = {"routers": 2, **router_ports(2)}
    with start_local(engine="fake", launcher="ray", colocated=1, **more) as cluster:
        wait_until(lambda: len(cluster.status().routers) == 2, "they know of each other")
        wait_until(lambda: all(not r.unreached for r in cluster.status().routers), "both answer")
        pids = {name: cluster.pid(name) for name in ("router-0", "router-1")}
        door = int(cluster.endpoint.rpartition(":")[2])
        for name, pid in pids.items():
            assert psutil.Process(pid).cmdline()[0].startswith("ray::"), name
            assert door in listening(pid), name
        n_events = len(cluster.events)
        with Client(cluster.endpoint) as client:
            expected = client.generate("y", max_tokens=5, seed=1).token_ids
            cluster.kill("router-1")
            assert client.generate("y", max_tokens=5, seed=1).token_ids == expected
            cluster.wait_for("started", "router-1", after=n_events, timeout_s=120)
            assert client.generate("y", max_tokens=5, seed=1).token_ids == expected
        assert door in listening(cluster.pid("router-1"))


def test_settings_hold_at_all_routers_and_at_one_that_starts_later(cluster: LocalCluster) -> None:
    name = "router.max_queued"
    asked = admin_pb2.GetConfigRequest(names=[name])

    def held() -> list[str]:
        found = []
        for endpoint in sockets(cluster):
            with AdminClient(endpoint) as admin, suppress(TwolaneError):
                found += [its.value for its in admin.call("GetConfig", asked).fields]
        return found

    def changes(value: str) -> list[tuple[str, str]]:
        """Of the setting. Empty: a router did not answer in time, and nothing has changed."""
        asked = admin_pb2.SetConfigRequest(values={name: value})
        with cluster.admin() as admin, suppress(PreconditionError):
            done = admin.call("SetConfig", asked)
            return [(its.before, its.after) for its in done.changes if its.subject == name]
        return []

    assert wait_until(lambda: changes("77"), "it is set") == [("1024", "77")]
    wait_until(lambda: held() == ["77"] * N, "it holds at all routers")
    n_events = len(cluster.events)
    cluster.kill(NAMES[1])
    cluster.wait_for("started", NAMES[1], after=n_events)
    wait_until(lambda: held() == ["77"] * N, "the router that was started again has it, too")
    wait_until(lambda: know_each_other(cluster), "it is asked, too")
    assert wait_until(lambda: changes("null"), "it is set back") == [("77", "null")]
    wait_until(lambda: held() == ["1024"] * N, "it holds at all routers")
