"""What is wrong with a cluster, and the line that mends it: pure, from what its processes tell.

Each check is a function of `Facts`. A finding has a subject, what is wrong with it, and what to do:
commands stand in backticks, as one types them (tests/twolane/ops/test_lines_that_mend.py).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from twolane.v1 import admin_pb2, cluster_pb2, facts_pb2, worker_pb2

NOTE = admin_pb2.Finding.SEVERITY_NOTE
WARNING = admin_pb2.Finding.SEVERITY_WARNING
FAULT = admin_pb2.Finding.SEVERITY_FAULT
SOON_S = 7 * 86_400.0  # before the end of a certificate
CLOCK_S = 5.0  # by which clocks may differ: what is asked takes time
FEW_DESCRIPTORS = 4_096
SMALL_SHM_BYTES = 64 << 20
SMALL_LOG_DISK_BYTES = 256 << 20
ACTS_S = 3.0  # a controller that has not been heard for longer may have ended
LONG_S = 600.0  # without a step of a rollout
_MORE_DESCRIPTORS = "`ulimit -n 65536`, in the shell that starts `twolane up` or the agent"
_ROLES = {"prefill": worker_pb2.ROLE_PREFILL, "decode": worker_pb2.ROLE_DECODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`now`: Unix time where `processes` were asked. A process that did not answer has no facts
    in `processes`, and a reason in `unreached`."""

    now: float
    status: cluster_pb2.GetClusterStatusResponse
    processes: Mapping[str, facts_pb2.ProcessFacts]
    unreached: Mapping[str, str]


def diagnose(facts: Facts, checks: Collection[str] = ()) -> list[admin_pb2.Finding]:
    """The findings of those checks (none: all), worst first."""
    found = [
        finding
        for name, check in CHECKS.items()
        if not checks or name in checks
        for finding in _named(name, check(facts))
    ]
    return sorted(found, key=lambda finding: (-finding.severity, finding.check, finding.subject))


def _named(name: str, found: Iterator[admin_pb2.Finding]) -> Iterator[admin_pb2.Finding]:
    for finding in found:
        finding.check = name
        yield finding


def _controllers(facts: Facts) -> Iterator[admin_pb2.Finding]:
    controllers = [its for its in facts.status.controllers if its.last_heard_s <= ACTS_S]
    controllers.sort(key=lambda its: its.term)
    if len(controllers) > 1:
        names = [its.controller_id for its in controllers]
        is_known = controllers[-1].term > controllers[-2].term
        leave = f"leave {names[-1]}, which came last" if is_known else "leave one"
        yield _finding(
            FAULT, "controllers", f"{len(names)} controllers act: {', '.join(names)}",
            f"{leave}, and end the process of each other one with "
            "`kill -KILL PID`: Ctrl-C would stop the cluster with it",
        )  # fmt: skip
    elif not facts.status.controllers:
        yield _finding(
            WARNING, "controllers", "no controller is heard: what dies is not started again",
            "`twolane up --topology FILE`, as before: it finds what runs",
        )  # fmt: skip


def _routers(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for router in facts.status.routers:
        if router.unreached:
            its = router.address
            yield _finding(
                FAULT, its.router_id, f"other routers do not reach it: {router.unreached}",
                f"open {its.workers_endpoint} between routers (--worker-port), or start it again",
            )  # fmt: skip


def _reachability(facts: Facts) -> Iterator[admin_pb2.Finding]:
    endpoints = {its.worker.worker_id: its.worker.endpoint for its in _here(facts)}
    names = {endpoint: name for name, endpoint in endpoints.items()}
    for name, why in facts.unreached.items():
        if name in endpoints:
            yield _finding(
                FAULT, name, f"no router reaches it at {endpoints[name]}: {why}",
                f"`nc -vz {_host_and_port(endpoints[name])}` from the router; open that range "
                "(--ports FIRST-LAST)",
            )  # fmt: skip
    for name, its in facts.processes.items():
        for endpoint, why in its.unreachable.items():
            peer = names.get(endpoint, endpoint)
            yield _finding(
                FAULT, f"{name} > {peer}", f"{name} cannot connect to {peer} at {endpoint}: {why}",
                f"`nc -vz {_host_and_port(endpoint)}` from {name}'s host; open that range "
                "(--ports FIRST-LAST)",
            )  # fmt: skip


def _hosts(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for host in facts.status.hosts:
        if host.state != "up":
            left = f": {', '.join(host.workers)} may run there" if host.workers else ""
            yield _finding(
                FAULT, host.name, f"it is {host.state} for {host.for_s:.0f} s{left}",
                "start its agent again; if it is off, where `twolane up` runs: "
                f"`twolane fence --host {host.name} --i-saw-it-off`",
            )  # fmt: skip
        elif host.cordoned:
            mend = f"`twolane uncordon {host.name}`"
            yield _finding(NOTE, host.name, "it is cordoned: it gets no new workers", mend)
    known = {host.name for host in facts.status.hosts}
    for worker in _here(facts):
        if known and worker.host and worker.host not in known:
            yield _finding(
                WARNING, worker.worker.worker_id,
                f"its host {worker.host} is in no controller's topology: it is not started again, "
                "and no stop of the cluster ends it",
                f"put the host back into the topology, then `twolane drain-node {worker.host}`",
            )  # fmt: skip


def _certificates(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for name, its in facts.processes.items():
        for certificate in its.certificates:
            left_s = certificate.not_after - its.unix_time
            if left_s < SOON_S:
                when = "has expired" if left_s <= 0 else f"ends in {left_s / 3600:.0f} h"
                yield _finding(
                    FAULT if left_s <= 0 else WARNING, name, f"{certificate.file} {when}",
                    "`twolane certs renew`, on the host where the authority is",
                )  # fmt: skip


def _clocks(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for name, its in facts.processes.items():
        off_s = its.unix_time - facts.now
        if abs(off_s) > CLOCK_S:
            yield _finding(
                WARNING, name, f"its clock is {off_s:+.0f} s off that of the router",
                "`timedatectl set-ntp true`, on its host: certificates and events go by it",
            )  # fmt: skip
    store = facts.status.store
    if abs(store.clock_off_s) > CLOCK_S:
        yield _finding(
            WARNING, store.address, f"its clock is {store.clock_off_s:+.0f} s off the router's",
            "`timedatectl set-ntp true`, on its host: quotas and the leases of routers go by it",
        )  # fmt: skip


def _transports(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for worker in _here(facts):
        for peer in worker.load.transports:
            if peer.instead_of:
                name = worker.worker.worker_id
                yield _finding(
                    WARNING, f"{name} > {peer.worker_id}",
                    f"pages travel by {peer.transport}, as better ones fail: {peer.instead_of}",
                    f"mend that, or accept it: `twolane up --transport {peer.transport}`",
                )  # fmt: skip
    yield from _slow_on_one_host(facts)


def _slow_on_one_host(facts: Facts) -> Iterator[admin_pb2.Finding]:
    """Pages that go by a socket though both workers could reach one memory, or by the CPU's memory
    though both are on GPUs. Whether a link is faster between hosts, no process can tell."""
    workers = {its.worker.worker_id: its for its in _here(facts)}
    for name, worker in workers.items():
        for peer in worker.load.transports:
            other = workers.get(peer.worker_id)
            if other is None or peer.instead_of or not worker.host or worker.host != other.host:
                continue
            on_gpus = all(its.devices and "cpu" not in its.devices for its in (worker, other))
            better = "cuda_ipc" if on_gpus else "shm"
            if peer.transport in ("tcp", "unix") or (on_gpus and peer.transport == "shm"):
                yield _finding(
                    NOTE, f"{name} > {peer.worker_id}",
                    f"pages travel by {peer.transport}, though both are on {worker.host}",
                    f"`twolane up --transport {better}`, or without --transport",
                )  # fmt: skip


def _descriptors(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for name, its in facts.processes.items():
        most = its.most_open_files
        if its.open_files > 0.8 * most:
            text = f"{its.open_files} of {most} descriptors are open"
            yield _finding(FAULT, name, text, _MORE_DESCRIPTORS)
        elif most < FEW_DESCRIPTORS:
            text = f"it may open {most} descriptors: too few for many peers and clients"
            yield _finding(WARNING, name, text, _MORE_DESCRIPTORS)


def _memory(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for name, its in facts.processes.items():
        if 0 <= its.shm_free_bytes < SMALL_SHM_BYTES:
            yield _finding(
                WARNING, name, f"/dev/shm has {its.shm_free_bytes >> 20} MiB free",
                "`mount -o remount,size=8G /dev/shm`, or a larger shm_size of the container",
            )  # fmt: skip


def _logs(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for name, its in facts.processes.items():
        if its.log_file and 0 <= its.log_free_bytes < SMALL_LOG_DISK_BYTES:
            folder = shlex.quote(its.log_file.rpartition("/")[0])
            yield _finding(
                WARNING, name,
                f"{its.log_free_bytes >> 20} MiB are free on the disk of its log, {its.log_file}",
                f"make room on it (`du -xh {folder} | sort -h`, on its host, shows how large logs "
                "are), or start with --log-dir on another disk",
            )  # fmt: skip


def _versions(facts: Facts) -> Iterator[admin_pb2.Finding]:
    versions = Counter(its.version for its in facts.processes.values())
    workers = {its.worker.worker_id for its in _here(facts)}
    if len(versions) > 1:
        (usual, _), *_ = versions.most_common(1)
        for name, its in facts.processes.items():
            if its.version == usual:
                continue
            mend = f"install {usual} on its host, then end its process: it is started again"
            if name in workers:
                mend = (
                    f"install {usual} on its host, then `twolane drain {name} --wait --take` and "
                    f"`twolane fence {name}`: it is started again"
                )
            text = f"it is version {its.version}, the others are {usual}"
            yield _finding(WARNING, name, text, mend)


def _store(facts: Facts) -> Iterator[admin_pb2.Finding]:
    its = facts.status.store
    if facts.status.HasField("store") and not its.up:
        yield _finding(
            WARNING, its.address, f"routers do not reach what they share: {its.note}",
            "start it again; meanwhile quotas hold for each router alone",
        )  # fmt: skip


def _roles(facts: Facts) -> Iterator[admin_pb2.Finding]:
    alive = [its for its in facts.status.workers if its.state == "alive"]
    there = {
        name: {its.fingerprint for its in alive if role in its.roles}
        for name, role in _ROLES.items()
    }
    for name, fingerprints in there.items():
        if not fingerprints:
            mend = _who_could(facts, name)
            yield _finding(FAULT, name, f"no worker that is alive can {name}", mend)
    if all(there.values()) and not set.intersection(*there.values()):
        yield _finding(
            FAULT, "models", "no prefill worker has the model of a decode worker: nobody is served",
            "start both pools from one topology: the same model, revision and data type",
        )  # fmt: skip


def _pools(facts: Facts) -> Iterator[admin_pb2.Finding]:
    """Pools that are short, unless a whole role is missing, or a rollout takes workers away."""
    if any(_roles(facts)) or facts.status.rollout.state in ("running", "undoing"):
        return
    for pool in facts.status.pools:
        if pool.alive < pool.workers:
            start = f", {pool.starting} starting" if pool.starting else ""
            yield _finding(
                WARNING, pool.pool, f"{pool.alive} of {pool.workers} workers are alive{start}",
                "`twolane events --since 10m` says whether the others start, or have died",
            )  # fmt: skip


def _who_could(facts: Facts, role: str) -> str:
    """How the cluster gets a worker of that role again."""
    known = [its for its in facts.status.workers if _ROLES[role] in its.roles]
    for its in known:
        if its.state == "draining":
            return f"`twolane drain {its.worker.worker_id} --undo`"
    pools = [its.pool for its in known if its.pool] or [role]
    for pool in facts.status.pools:
        if pool.pool in pools and pool.workers:
            return "`twolane events --since 10m` says why its workers do not come up"
    return f"`twolane scale {pools[0]}=1`"


def _workers(facts: Facts) -> Iterator[admin_pb2.Finding]:
    for its in _here(facts):
        name, load = its.worker.worker_id, its.load
        if load.step_age_s > load.step_bound_s > 0:
            text = f"its step has not ended for {load.step_age_s:.0f} s"
            yield _finding(FAULT, name, text, f"`twolane fence {name}`")
        elif its.state == "suspect":
            text = f"it is silent for {its.last_heard_s:.0f} s"
            yield _finding(FAULT, name, text, f"`twolane logs {name}`; `twolane fence {name}`")
        elif load.pages.quarantined:
            text = f"{load.pages.quarantined} pages wait for a proof that their writer is dead"
            mend = "`twolane events --kind worker` names who was lost; `twolane fence` that one"
            lost = [its.worker.worker_id for its in _here(facts) if its.state == "suspect"]
            yield _finding(WARNING, name, text, f"`twolane fence {lost[0]}`" if lost else mend)


def _rollout(facts: Facts) -> Iterator[admin_pb2.Finding]:
    its = facts.status.rollout
    if its.state not in ("running", "undoing") or its.waits_s <= LONG_S:
        return
    waited_for = [worker.name for worker in its.workers if worker.now != "serves"]
    mend = [f"`twolane logs {waited_for[0]}`"] if waited_for else []
    if its.state == "running":
        mend.append("`twolane rollout undo`")
    yield _finding(
        WARNING, its.to_dir, f"it has made no step for {its.waits_s / 60:.0f} min: {its.waits_for}",
        "; ".join(mend) or "`twolane rollout status`",
    )  # fmt: skip


def _listeners(facts: Facts) -> Iterator[admin_pb2.Finding]:
    names = [*(f"router/{its.address.router_id}" for its in facts.status.routers)]
    names += sorted(f"worker/{its.worker.worker_id}" for its in _here(facts))
    mend = (
        f"`twolane certs init --dir tls`; `twolane certs issue {' '.join(names)} "
        "controller/controller --host HOST --dir tls`; `twolane up --tls-ca tls/ca.crt "
        "--tls-cert tls/{name}.crt --tls-key tls/{name}.key`"
    )
    for line in facts.status.insecure_listeners:
        yield _finding(WARNING, "TLS", line, mend)


CHECKS: Mapping[str, Callable[[Facts], Iterator[admin_pb2.Finding]]] = {
    "controllers": _controllers,
    "routers": _routers,
    "hosts": _hosts,
    "reachability": _reachability,
    "roles": _roles,
    "pools": _pools,
    "workers": _workers,
    "transports": _transports,
    "certificates": _certificates,
    "listeners": _listeners,
    "clocks": _clocks,
    "descriptors": _descriptors,
    "memory": _memory,
    "logs": _logs,
    "versions": _versions,
    "store": _store,
    "rollout": _rollout,
}


def _here(facts: Facts) -> list[cluster_pb2.WorkerStatus]:
    return [its for its in facts.status.workers if its.state != "gone"]


def _host_and_port(endpoint: str) -> str:
    host, _, port = endpoint.rpartition(":")
    return f"{host} {port}"


def _finding(
    severity: admin_pb2.Finding.Severity, subject: str, text: str, mend: str
) -> admin_pb2.Finding:
    return admin_pb2.Finding(severity=severity, subject=subject, text=text, mend=mend)
