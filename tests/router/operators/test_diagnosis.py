"""Planted faults, each found once and with the line that mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from twolane.router.operators.diagnosis import CHECKS, FAULT, NOTE, WARNING, Facts, diagnose
from twolane.v1 import cluster_pb2, facts_pb2, worker_pb2

NOW = 1_800_000_000.0
DAY_S = 86_400.0


class Found(NamedTuple):
    check: str
    severity: int
    subject: str
    text: str
    mend: str  # a part of it


def healthy() -> Facts:
    """A router, a controller, a worker of each role."""
    status = cluster_pb2.GetClusterStatusResponse(router_id="router-0")
    status.routers.add().address.router_id = "router-0"
    status.controllers.add(controller_id="c1", term=3)
    status.hosts.add(name="a", state="up")
    for i, (name, role) in enumerate(
        (("prefill-0", worker_pb2.ROLE_PREFILL), ("decode-0", worker_pb2.ROLE_DECODE))
    ):
        worker = status.workers.add(state="alive", roles=[role], fingerprint="f")
        worker.worker.worker_id, worker.worker.endpoint = name, f"10.0.0.{i}:7300"
    processes = {
        name: facts_pb2.ProcessFacts(
            version="1.2",
            unix_time=NOW,
            open_files=40,
            most_open_files=65_536,
            shm_free_bytes=1 << 33,
            log_file=f"/var/log/two lanes/{name}.log",
            log_free_bytes=1 << 33,
            certificates=[
                facts_pb2.CertificateFacts(file=f"{name}.crt", not_after=NOW + 29 * DAY_S)
            ],
        )
        for name in ("router-0", "prefill-0", "decode-0")
    }
    return Facts(now=NOW, status=status, processes=processes, unreached={})


def expired(facts: Facts) -> None:
    facts.processes["decode-0"].certificates[0].not_after = NOW - 1


def ends_soon(facts: Facts) -> None:
    facts.processes["decode-0"].certificates[0].not_after = NOW + DAY_S


def blocked(facts: Facts) -> None:
    facts.processes["prefill-0"].unreachable["10.0.0.1:7300"] = "no answer within 1 s"


def clock(facts: Facts) -> None:
    facts.processes["prefill-0"].unix_time -= 90


def two_controllers(facts: Facts) -> None:
    facts.status.controllers.add(controller_id="c2", term=4)


def two_controllers_without_terms(facts: Facts) -> None:
    facts.status.controllers.add(controller_id="c2", term=3)


def unlisted_host(facts: Facts) -> None:
    facts.status.workers[1].host = "b"


def no_controller(facts: Facts) -> None:
    del facts.status.controllers[:]


def worse_transport(facts: Facts) -> None:
    facts.status.workers[0].load.transports.add(
        worker_id="decode-0", transport="tcp", instead_of="nixl: no agent there"
    )


def slow_on_one_host(facts: Facts) -> None:
    for worker in facts.status.workers:
        worker.host = "a"
        worker.devices.append("0")
    facts.status.workers[0].load.transports.add(worker_id="decode-0", transport="unix")


def clock_of_the_store(facts: Facts) -> None:
    facts.status.store.address, facts.status.store.up = "redis://r", True
    facts.status.store.clock_off_s = 61.0


def few_descriptors(facts: Facts) -> None:
    facts.processes["router-0"].most_open_files = 1024


def no_descriptors(facts: Facts) -> None:
    facts.processes["router-0"].open_files = 65_000


def skew(facts: Facts) -> None:
    facts.processes["decode-0"].version = "1.1"


def small_shm(facts: Facts) -> None:
    facts.processes["decode-0"].shm_free_bytes = 1 << 20


def full_disk(facts: Facts) -> None:
    facts.processes["decode-0"].log_free_bytes = 9 << 20


def store_down(facts: Facts) -> None:
    facts.status.store.address, facts.status.store.note = "redis://r", "refused"


def silent_host(facts: Facts) -> None:
    host = facts.status.hosts[0]
    host.state, host.for_s = "silent", 12.0
    host.workers.append("decode-0")


def cordoned_host(facts: Facts) -> None:
    facts.status.hosts[0].cordoned = True


def lost_router(facts: Facts) -> None:
    router = facts.status.routers.add(unreached="Deadline Exceeded")
    router.address.router_id, router.address.workers_endpoint = "router-1", "10.0.0.9:7201"


def no_decode(facts: Facts) -> None:
    facts.status.workers[1].state = "draining"


def two_models(facts: Facts) -> None:
    facts.status.workers[1].fingerprint = "g"


def stuck(facts: Facts) -> None:
    facts.status.workers[1].load.step_age_s = 30.0
    facts.status.workers[1].load.step_bound_s = 5.0


def quarantine(facts: Facts) -> None:
    facts.status.workers[1].load.pages.quarantined = 7


def plain_text(facts: Facts) -> None:
    facts.status.insecure_listeners.append("metrics at 0.0.0.0:9100 is without TLS")


def rollout_without_a_step(facts: Facts, state: str = "running") -> None:
    rollout = facts.status.rollout
    rollout.state, rollout.to_dir, rollout.waits_s = state, "/models/b", 660.0
    rollout.waits_for = "decode-0 starts"
    rollout.workers.add(name="prefill-0", now="serves")
    rollout.workers.add(name="decode-0", now="starts", is_new=True)


def short_pool(facts: Facts) -> None:
    facts.status.pools.add(pool="decode", workers=3, alive=1, starting=1)
    facts.status.pools.add(pool="prefill", workers=1, alive=1)


PLANTED: list[tuple[Callable[[Facts], None], Found]] = [
    (expired, Found("certificates", FAULT, "decode-0", "has expired", "twolane certs renew")),
    (ends_soon, Found("certificates", WARNING, "decode-0", "ends in 24 h", "twolane certs renew")),
    (
        blocked,
        Found("reachability", FAULT, "prefill-0 > decode-0", "cannot connect", "nc -vz 10.0.0.1"),
    ),
    (clock, Found("clocks", WARNING, "prefill-0", "is -90 s off", "timedatectl set-ntp true")),
    (two_controllers, Found("controllers", FAULT, "controllers", "c1, c2", "leave c2, which")),
    (
        two_controllers_without_terms,
        Found("controllers", FAULT, "controllers", "c1, c2", "leave one, and"),
    ),
    (
        unlisted_host,
        Found("hosts", WARNING, "decode-0", "host b", "drain-node b"),
    ),
    (no_controller, Found("controllers", WARNING, "controllers", "no controller", "twolane up")),
    (
        worse_transport,
        Found("transports", WARNING, "prefill-0 > decode-0", "nixl: no agent", "--transport tcp"),
    ),
    (
        slow_on_one_host,
        Found("transports", NOTE, "prefill-0 > decode-0", "both are on a", "--transport cuda_ipc"),
    ),
    (clock_of_the_store, Found("clocks", WARNING, "redis://r", "is +61 s off", "set-ntp true")),
    (few_descriptors, Found("descriptors", WARNING, "router-0", "1024", "ulimit -n 65536")),
    (no_descriptors, Found("descriptors", FAULT, "router-0", "65000 of 65536", "ulimit -n")),
    (skew, Found("versions", WARNING, "decode-0", "1.1, the others are 1.2", "install 1.2")),
    (small_shm, Found("memory", WARNING, "decode-0", "1 MiB free", "remount,size=8G")),
    (
        full_disk,
        Found(
            "logs",
            WARNING,
            "decode-0",
            "9 MiB are free on the disk of its log, /var/log/two lanes/decode-0.log",
            "du -xh '/var/log/two lanes' | sort -h",
        ),
    ),
    (store_down, Found("store", WARNING, "redis://r", "refused", "start it again")),
    (silent_host, Found("hosts", FAULT, "a", "decode-0 may run", "fence --host a --i-saw-it-off")),
    (cordoned_host, Found("hosts", NOTE, "a", "cordoned", "twolane uncordon a")),
    (lost_router, Found("routers", FAULT, "router-1", "Deadline Exceeded", "10.0.0.9:7201")),
    (no_decode, Found("roles", FAULT, "decode", "can decode", "drain decode-0 --undo")),
    (two_models, Found("roles", FAULT, "models", "nobody is served", "one topology")),
    (
        short_pool,
        Found(
            "pools",
            WARNING,
            "decode",
            "1 of 3 workers are alive, 1 starting",
            "whether the others start",
        ),
    ),
    (stuck, Found("workers", FAULT, "decode-0", "for 30 s", "twolane fence decode-0")),
    (quarantine, Found("workers", WARNING, "decode-0", "7 pages wait", "twolane events")),
    (
        rollout_without_a_step,
        Found(
            "rollout",
            WARNING,
            "/models/b",
            "no step for 11 min: decode-0 starts",
            "`twolane logs decode-0`; `twolane rollout undo`",
        ),
    ),
    (plain_text, Found("listeners", WARNING, "TLS", "0.0.0.0:9100", "twolane certs init")),
]


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert diagnose(healthy()) == []


@pytest.mark.parametrize(("plant", "found"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_fault_is_found_with_the_line_that_mends_it(
    plant: Callable[[Facts], None], found: Found
) -> None:
    facts = healthy()
    plant(facts)
    (finding,) = diagnose(facts)
    assert (finding.check, finding.severity, finding.subject) == found[:3]
    assert found.text in finding.text
    assert found.mend in finding.mend
    assert diagnose(facts, [found.check]) == [finding]


def test_a_process_that_writes_no_log_file_or_tells_of_none_is_no_finding() -> None:
    """Those of an older version tell nothing of it."""
    facts = healthy()
    for its in facts.processes.values():
        its.log_file, its.log_free_bytes = "", 0
    assert diagnose(facts) == []


def test_rollout_that_waits_for_an_operator_or_not_for_long_is_no_finding() -> None:
    for state, waits_s in (("canary", 9e9), ("paused", 9e9), ("running", 60.0), ("done", 9e9)):
        facts = healthy()
        rollout_without_a_step(facts, state)
        facts.status.rollout.waits_s = waits_s
        assert diagnose(facts) == []


def test_a_pool_that_is_short_for_a_rollout_or_without_any_worker_of_its_role_is_told_once() -> (
    None
):
    facts = healthy()
    short_pool(facts)
    facts.status.rollout.state = "running"
    assert diagnose(facts) == []
    no_decode(facts)
    facts.status.rollout.state = ""
    assert [finding.check for finding in diagnose(facts)] == ["roles"]


def test_the_best_transport_of_a_host_and_any_between_hosts_are_no_finding() -> None:
    for transport, hosts, device in (
        ("cuda_ipc", "aa", "0"),
        ("shm", "aa", "cpu"),
        ("tcp", "ab", "0"),
    ):
        facts = healthy()
        facts.status.hosts.add(name="b", state="up")
        for worker, host in zip(facts.status.workers, hosts, strict=True):
            worker.host = host
            worker.devices.append(device)
        facts.status.workers[0].load.transports.add(worker_id="decode-0", transport=transport)
        assert diagnose(facts) == []


def test_a_worker_that_no_router_reaches_is_a_fault() -> None:
    facts = healthy()
    unreached = {"decode-0": "has not answered in 2 s"}
    (finding,) = diagnose(
        Facts(now=NOW, status=facts.status, processes=facts.processes, unreached=unreached)
    )
    assert (finding.severity, finding.subject) == (FAULT, "decode-0")
    assert "`nc -vz 10.0.0.1 7300` from the router" in finding.mend


def test_the_worst_comes_first_and_every_check_is_planted() -> None:
    facts = healthy()
    for plant in (cordoned_host, skew, expired):
        plant(facts)
    assert [its.check for its in diagnose(facts)] == ["certificates", "versions", "hosts"]
    assert {found.check for _, found in PLANTED} == {*CHECKS}


def test_a_controller_that_another_has_replaced_a_moment_ago_acts_no_more() -> None:
    facts = healthy()
    facts.status.controllers[0].last_heard_s = 4.0
    two_controllers(facts)
    assert diagnose(facts) == []
