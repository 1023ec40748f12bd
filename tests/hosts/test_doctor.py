"""Faults that are planted in a cluster of two hosts: `twolane doctor` finds each, and the line that
it prints mends it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.hosts.certificates import FLAGS, files_of
from tests.hosts.fake_hosts import HERE, Host, Network
from tests.hosts.moved_clock import MovedClock
from tests.hosts.ray_hosts import command_of, wait_until
from tests.hosts.test_agents import PYTHON, SECRET, Cluster
from tests.pki import Pki
from tests.redis_servers import RedisServer, redis_server
from twolane.admin import AdminClient
from twolane.cli.app import app
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.v1 import cluster_pb2, cluster_pb2_grpc

pytestmark = pytest.mark.timeout(900)
WORKERS = ["prefill-0", *(f"decode-{n}" for n in range(3))]
ROUTERS = ["router-0", "router-1"]
OTHER_VERSION = "9.9.9"


class FaultyCluster:
    """Two hosts, two routers and a store. `far` is the host without routers; its processes are of
    another version from the start."""

    def __init__(self, network: Network, log_dir: Path, redis: RedisServer) -> None:
        self.network, self._log_dir = network, log_dir
        self.clock = MovedClock(HERE, redis.port)
        cluster = self.cluster = Cluster(network, log_dir, WORKERS, ROUTERS, agents_at="a")
        self.near, self.far = cluster.hosts
        other = self.far.root / "tmp/other"
        other.mkdir()
        (other / "sitecustomize.py").write_text(
            f"import twolane\ntwolane.__version__ = '{OTHER_VERSION}'\n"
        )
        self.far.bg(
            f"PYTHONPATH=/tmp/other {PYTHON} twolane.deploy agent --listen {self.far.ip}:7210 "
            f"{SECRET} {FLAGS}",
            log_dir / "agent-b.log",
        )
        hosts = [{"name": its.name, "agent": f"{its.ip}:7210", "seats": 2} for its in cluster.hosts]
        topology = {
            "launcher": "agents", "hosts": hosts, "router": {"processes": len(ROUTERS)},
            "pools": [{"role": "prefill"}, {"role": "decode", "workers": 3}],
        }  # fmt: skip
        (self.near.root / "tmp/t.yaml").write_text(json.dumps(topology))
        self.up()

    def up(self) -> None:
        n_events = len(self.cluster.events()) if (self._log_dir / "up.log").exists() else 0
        self.near.bg(
            f"{PYTHON} twolane.cli up --json --topology /tmp/t.yaml {SECRET} {FLAGS} --engine fake "
            f"--transport tcp --store {self.clock.url} "
            "--heartbeat-s 0.3 --suspicion-s 1.5 --lease-s 60",
            self._log_dir / "up.log",
        )
        self.ready = self.cluster.until("ready", after=n_events)

    def socket(self) -> str:
        return next(
            f"unix:{path}"
            for path in sorted((self.near.root / "tmp").glob("twolane-*/admin.sock*"))
            if "router-1" not in path.name
        )

    def run(self, line: str, *, codes: tuple[int, ...] = (0,)) -> str:
        """What an operator's command prints."""
        done = CliRunner().invoke(app, [*shlex.split(line), "--endpoint", self.socket()])
        assert done.exit_code in codes, done.output
        return done.stdout

    def findings(self, check: str) -> dict[str, dict[str, str]]:
        """By subject."""
        told = json.loads(self.run(f"doctor --check {check} --json", codes=(0, 1)))
        return {its["subject"]: its for its in told.get("findings", [])}

    def finds(self, check: str, subject: str, text: str, mend: str) -> None:
        """Sooner or later, as `twolane doctor` also prints it for people."""

        def is_found() -> bool:
            its = self.findings(check).get(subject)
            return its is not None and text in its["text"] and mend in its["mend"]

        wait_until(is_found, shows=lambda: self.findings(check))
        told = self.run(f"doctor --check {check}", codes=(0, 1))
        assert mend in " ".join(told.split())
        finding = self.findings(check).get(subject, {"mend": ""})  # some go by themselves
        for line in re.findall(r"`twolane ([^`]+)`", finding["mend"]):
            self.tries(line)
        print(f"found: {check} {subject}")

    def tries(self, line: str) -> None:
        """The cluster takes the command, as far as it can be tried: the launcher's are not."""
        if line.startswith(("drain ", "uncordon ", "scale ")) or line.startswith("fence decode"):
            self.run(f"{line} --dry-run")
        elif line.startswith(("logs ", "events ")):
            self.run(line)

    def misses(self, check: str, subject: str) -> None:
        """Sooner or later."""
        wait_until(lambda: subject not in self.findings(check))

    @contextmanager
    def stopped(self, host: Host, name: str) -> Iterator[None]:
        """The process of that name does not run meanwhile."""
        (pid,) = self.pids(host, name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def pids(self, host: Host, name: str) -> list[int]:
        """As seen from here."""
        logs = {pid: Path(f"/proc/{pid}/fd/1") for pid in host.pids()}
        return [
            pid for pid, log in logs.items()
            if b"twolane.deploy" in command_of(pid) and os.readlink(log).endswith(f"/{name}.log")
        ]  # fmt: skip

    def status(self) -> cluster_pb2.GetClusterStatusResponse:
        with AdminClient(self.socket()) as admin:
            found: cluster_pb2.GetClusterStatusResponse = admin.call(
                "GetClusterStatus", cluster_pb2.GetClusterStatusRequest()
            )
        return found

    def host_of(self, worker: str) -> Host:
        places = {its.worker.worker_id: its.host for its in self.status().workers}
        return self.near if places[worker] == "a" else self.far


def reach(cluster: FaultyCluster) -> None:
    """The port of a decode worker is closed to a prefill worker; what is connected stays so."""
    giver = cluster.host_of("prefill-0")
    taker, host = next(
        (name, its) for name in WORKERS[1:] if (its := cluster.host_of(name)) is not giver
    )
    endpoints = {w.worker.worker_id: w.worker.endpoint for w in cluster.status().workers}
    port = endpoints[taker].rpartition(":")[2]
    host.run(
        f"nft 'add rule inet faults input ip saddr {giver.ip} tcp dport {port} "
        "tcp flags & (syn|ack) == syn drop'"
    )
    cluster.finds("reachability", f"prefill-0 > {taker}", "no answer", f"nc -vz {host.ip} {port}")
    cluster.network.heal([host])
    cluster.misses("reachability", f"prefill-0 > {taker}")


def certificate(cluster: FaultyCluster, folder: Path) -> None:
    """That of the first router is over."""
    file = files_of(cluster.near, "router-0").cert
    good = file.read_bytes()
    shutil.copy(Pki(folder / "pki").expired("router/router-0").cert, file)
    cluster.finds("certificates", "router-0", "has expired", "twolane certs renew")
    file.write_bytes(good)
    cluster.misses("certificates", "router-0")


def second_controller(cluster: FaultyCluster) -> None:
    """One that another has replaced does not know it yet."""
    addresses = {r.address.router_id: r.address for r in cluster.status().routers}
    endpoint = addresses["router-0"].workers_endpoint
    credentials = Credentials(tls=files_of(cluster.near, "controller"))

    is_over = threading.Event()

    async def supervise() -> None:
        async with credentials.channel(endpoint, Role.ROUTER) as channel:
            stub = cluster_pb2_grpc.MembershipServiceStub(channel)
            while not is_over.is_set():  # each second, as it does
                await stub.Supervise(cluster_pb2.SuperviseRequest(controller_id="late", term=1))
                await asyncio.to_thread(is_over.wait, 1.0)

    with ThreadPoolExecutor(1) as pool:
        supervising = pool.submit(asyncio.run, supervise())
        try:
            cluster.finds("controllers", "controllers", "late", "kill -KILL PID")
        finally:
            is_over.set()
        supervising.result()
    cluster.misses("controllers", "controllers")


def test_the_doctor_finds_what_is_planted_and_its_line_mends_it(
    network: Network, tmp_path: Path
) -> None:
    with redis_server(tmp_path / "redis") as redis:
        cluster = FaultyCluster(network, tmp_path, redis)
        near, far = cluster.near, cluster.far
        for name in WORKERS:
            if cluster.host_of(name) is far:
                cluster.finds("versions", name, OTHER_VERSION, f"twolane drain {name} --wait")
        cluster.run("check")  # every prefill worker sends pages to every decode worker
        giver = cluster.host_of("prefill-0")
        near_it = next(name for name in WORKERS[1:] if cluster.host_of(name) is giver)
        cluster.finds(
            "transports", f"prefill-0 > {near_it}", "though both are on", "without --transport"
        )

        (pid,) = cluster.pids(near, "router-0")
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, hard))
        cluster.finds("descriptors", "router-0", "1024 descriptors", "ulimit -n 65536")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        cluster.misses("descriptors", "router-0")

        there = next(name for name in WORKERS if cluster.host_of(name) is far)
        far.run("mount -o remount,size=1M /dev/shm")
        cluster.finds("memory", there, "1 MiB free", line := "mount -o remount,size=8G /dev/shm")
        far.run(line)
        cluster.misses("memory", there)

        reach(cluster)
        certificate(cluster, tmp_path)
        second_controller(cluster)

        cluster.clock.off_s = 3600
        cluster.finds("clocks", cluster.clock.url, "+3600 s off", "timedatectl set-ntp true")
        cluster.clock.off_s = 0
        cluster.misses("clocks", cluster.clock.url)
        redis.kill()
        cluster.finds("store", cluster.clock.url, "do not reach", "start it again")
        redis.start()
        cluster.misses("store", cluster.clock.url)

        with cluster.stopped(near, "router-1"):
            cluster.finds("routers", "router-1", "do not reach it", "or start it again")
        cluster.misses("routers", "router-1")
        with cluster.stopped(cluster.host_of("decode-0"), "decode-0"):
            cluster.finds("workers", "decode-0", "it is silent", "twolane fence decode-0")
        cluster.misses("workers", "decode-0")

        for name in WORKERS[1:]:
            cluster.run(f"drain {name}")
        cluster.finds("roles", "decode", "no worker that is alive", "twolane drain decode-")
        for name in WORKERS[1:]:
            cluster.run(f"drain {name} --undo")
        cluster.misses("roles", "decode")

        cluster.run("cordon b --yes")
        cluster.finds("hosts", "b", "it is cordoned", line := "twolane uncordon b")
        cluster.run(f"{line.removeprefix('twolane ')} --yes")
        cluster.misses("hosts", "b")
        far.freeze()
        cluster.finds("hosts", "b", "it is silent", "start its agent again")
        far.thaw()
        cluster.misses("hosts", "b")

        for pid in near.pids():
            if b"twolane.deploy.up\0" in command_of(pid):
                with suppress(ProcessLookupError):  # it has ended with the one before
                    os.kill(pid, signal.SIGKILL)
        cluster.finds("controllers", "controllers", "no controller is heard", "twolane up")
        cluster.up()
        cluster.misses("controllers", "controllers")
        assert near.run(f"{PYTHON} twolane.cli down --yes", timeout_s=120) == "stopped\n"
