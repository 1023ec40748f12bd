"""Acts that change a cluster of two hosts, under load: no request notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, Launcher, wait_until
from tests.timing import PATIENT
from twolane import AdminClient, Client, PreconditionError, UnavailableError
from twolane.v1 import acts_pb2

POOLS = [{"role": "prefill"}, {"role": "decode"}]
COSTLY = [
    f"resumes.{reason}"
    for reason in ("decode_worker_lost", "prefill_worker_lost", "missing_events", "stalled")
]


@pytest.fixture
def cluster() -> Iterator[AgentCluster]:
    with AgentCluster((2, 3), POOLS, timing=PATIENT) as cluster:
        yield cluster


@contextmanager
def load_on(cluster: AgentCluster) -> Iterator[None]:
    """Three clients. At the end each has had answers, all alike and none an error."""
    stop = threading.Event()

    def ask(number: int) -> set[tuple[int, ...]]:
        answers = set()
        with Client(cluster.endpoint) as client:
            while not stop.is_set():
                prompt = f"once upon {number}" * (1 + number)
                answers.add(client.generate(prompt, max_tokens=60, seed=1).token_ids)
                stop.wait(0.05)  # the processes that start need the cores, too
        return answers

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask, i) for i in range(3)]
        try:
            yield
        finally:
            stop.set()
        assert [len(each.result()) for each in asking] == [1, 1, 1]


def scale(admin: AdminClient, **sizes: int) -> acts_pb2.ActResponse:
    pools = [acts_pb2.PoolSize(pool=name, workers=n) for name, n in sizes.items()]
    done: acts_pb2.ActResponse = admin.call("ScalePools", acts_pb2.ScalePoolsRequest(pools=pools))
    return done


def is_heard(admin: AdminClient) -> bool:
    """Whether a router hears a controller: until then it refuses every act."""
    pools = [acts_pb2.PoolSize(pool="prefill", workers=1)]
    try:
        dry_run = acts_pb2.Act(dry_run=True)
        admin.call("ScalePools", acts_pb2.ScalePoolsRequest(act=dry_run, pools=pools))
    except UnavailableError:
        return False
    return True


def names(cluster: AgentCluster, *expected: str) -> bool:
    return sorted(cluster.alive()) == sorted(expected)


def all_know_what_is_desired(cluster: AgentCluster) -> bool:
    return all((cluster.folder / host / "desired").exists() for host in cluster.hosts)


def test_workers_that_nobody_remembers_run_on_under_the_next_controller(
    cluster: AgentCluster,
) -> None:
    first = cluster.controller()
    wait_until(lambda: [*cluster.folder.glob("twolane-agent-*/admin.sock")])
    wait_until(lambda: names(cluster, "prefill-0", "decode-0"))
    with cluster.admin() as admin:
        wait_until(lambda: is_heard(admin))
        scale(admin, decode=3)
    wait_until(lambda: names(cluster, "prefill-0", "decode-0", "decode-1", "decode-2"))
    wait_until(lambda: all_know_what_is_desired(cluster))
    before = cluster.pids()
    first.kill()
    first.wait()
    for host in cluster.hosts:
        cluster.kill_agent(host)
        (cluster.folder / host / "desired").unlink()
        cluster.start_agent(host)
    cluster.heartbeat.unlink()
    cluster.controller()
    wait_until(lambda: all_know_what_is_desired(cluster))
    with cluster.admin() as admin:
        wait_until(lambda: is_heard(admin))
        scale(admin, prefill=2)
    wait_until(lambda: len(cluster.alive()) == 5)
    assert {name: cluster.pids()[name] for name in before} == before


def test_two_hosts_are_scaled_drained_and_opened_while_controllers_die(
    cluster: AgentCluster,
) -> None:
    launcher = cluster.launcher()
    launcher.until("ready")
    with load_on(cluster), cluster.admin() as admin:
        wait_until(lambda: names(cluster, "prefill-0", "decode-0"))
        scale(admin, prefill=2, decode=2)
        launcher.kill()  # whatever it has done of that
        launcher = cluster.launcher()
        launcher.until("ready")
        wait_until(lambda: names(cluster, "prefill-0", "prefill-1", "decode-0", "decode-1"))
        with pytest.raises(PreconditionError, match="no room for 1 of decode: 5 of 5 seats"):
            scale(admin, decode=4)
        drained(cluster, admin, "node-a", launcher)
        wait_until(lambda: {*cluster.alive().values()} == {"node-b"})
        admin.call("CordonHost", acts_pb2.CordonHostRequest(host="node-a", undo=True))
        scale(admin, prefill=1, decode=1)
        wait_until(lambda: len(cluster.alive()) == 2)
        status = cluster.status()
        assert not {name: n for name, n in status.counters.items() if name in COSTLY and n}
        assert wait_until(lambda: killed(cluster, admin)) == "A"
        wait_until(lambda: len(cluster.alive()) == 2)


def killed(cluster: AgentCluster, admin: AdminClient) -> str:
    """The class of the proof; empty if the worker had just ended, which routers hear later."""
    worker = next(its for its in cluster.status().workers if its.state == "alive")
    request = acts_pb2.KillWorkerRequest(
        worker_id=worker.worker_id, expect_epoch=worker.epoch, may_restart=True
    )
    try:
        return str(admin.call("KillWorker", request).proof_class)
    except PreconditionError as error:
        if "its epoch is 0000000000000000" not in str(error):
            raise
        return ""


def drained(cluster: AgentCluster, admin: AdminClient, host: str, launcher: Launcher) -> None:
    """Ended by the next controller, as this one dies."""
    admin.call("DrainHost", acts_pb2.DrainHostRequest(host=host, hand_over=True))
    launcher.kill()
    again = cluster.launcher()
    again.until("ready")

    def is_safe() -> bool:
        (its,) = [its for its in cluster.status().hosts if its.name == host]
        return not its.workers

    wait_until(is_safe)
