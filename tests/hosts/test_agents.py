"""A cluster of two hosts without Ray: an agent on each, started by hand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.answers import answers_at, one_machines_answers
from tests.hosts.certificates import FLAGS, give_certificates
from tests.hosts.fake_hosts import Host, Network
from tests.hosts.ray_hosts import command_of, wait_until
from twolane.admin import AdminClient
from twolane.cli.controller import ControllerClient
from twolane.rpc.secret import new_secret
from twolane.status import ClusterStatus

PYTHON = f"env CUDA_VISIBLE_DEVICES= {sys.executable} -P -m"
SECRET = "--secret-file /tmp/secret"
pytestmark = pytest.mark.timeout(900)


class Cluster:
    """Hosts a, where the launcher is, and b. `workers`: those that may run, `routers` too: they get
    certificates."""

    def __init__(
        self,
        network: Network,
        log_dir: Path,
        workers: Sequence[str] = ("prefill-0", "decode-0"),
        routers: Sequence[str] = ("router-0",),
        *,
        agents_at: str = "ab",
    ) -> None:
        self.network = network
        self.hosts = [network.host("a"), network.host("b")]
        self._log_dir = log_dir
        self._secret = new_secret()
        give_certificates(self.hosts, workers, routers)
        for host in self.hosts:
            self._give_secret(host)
            if host.name in agents_at:
                self.start_agent(host)

    def _give_secret(self, host: Host) -> None:
        (host.root / "tmp/secret").write_text(self._secret)

    def start_agent(self, host: Host) -> None:
        """It may have been made anew."""
        self._give_secret(host)
        host.bg(
            f"{PYTHON} twolane.deploy agent --listen {host.ip}:7210 {SECRET} {FLAGS}",
            self._log_dir / f"agent-{host.name}.log",
        )

    def up(self, *options: str) -> None:
        hosts = [{"name": host.name, "agent": f"{host.ip}:7210"} for host in self.hosts]
        pools = [{"role": "prefill"}, {"role": "decode"}]
        topology = {"launcher": "agents", "hosts": hosts, "pools": pools}
        (self.hosts[0].root / "tmp/t.yaml").write_text(json.dumps(topology))
        self.hosts[0].bg(
            f"{PYTHON} twolane.cli up --json --topology /tmp/t.yaml {SECRET} {FLAGS} "
            f"{' '.join(options)}",
            self._log_dir / "up.log",
        )

    def events(self) -> list[dict[str, Any]]:
        lines = (self._log_dir / "up.log").read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # the last may be half written
        return [json.loads(line) for line in whole if line.startswith("{")]

    def until(self, kind: str, name: str = "", *, after: int = 0) -> dict[str, Any]:
        """The first such event from that number on."""

        def found() -> list[dict[str, Any]]:
            of_kind = [each for each in self.events()[after:] if each["kind"] == kind]
            return [each for each in of_kind if each.get("name", "") == name]

        wait_until(lambda: bool(found()))
        return found()[0]

    def status(self) -> ClusterStatus:
        (socket,) = (self.hosts[0].root / "tmp").glob("twolane-*/admin.sock")
        with AdminClient(f"unix:{socket}") as admin:
            return admin.status()

    def epoch(self, name: str) -> int:
        """Of a worker that is alive; 0: it is not."""
        alive = [
            w.epoch for w in self.status().workers if (w.worker_id, w.state) == (name, "alive")
        ]
        return alive[0] if alive else 0

    def say_off(self, host: str) -> str:
        (socket,) = (self.hosts[0].root / "tmp").glob("twolane-*/ctl.sock")
        with ControllerClient(f"unix:{socket}") as controller:
            return controller.say_off(host)


def test_a_cluster_over_agents_answers_as_one_machine_does_and_takes_a_host_back(
    network: Network, tmp_path: Path
) -> None:
    cluster = Cluster(network, tmp_path)
    a, b = cluster.hosts
    cluster.up("--exact --threads 1")
    ready = cluster.until("ready")
    right = one_machines_answers()
    assert answers_at(a, ready["endpoint"]) == right
    seen = cluster.status()
    assert {w.worker_id: w.host for w in seen.workers} == {"prefill-0": "a", "decode-0": "b"}
    b.kill()  # its agent is gone with it: nothing proves that
    cluster.until("lost", "b")
    # the event comes before the router is told
    wait_until(lambda: {its.name: its.state for its in cluster.status().hosts}["b"] == "silent")
    assert "died" not in {event["kind"] for event in cluster.events()}
    n_events = len(cluster.events())
    cluster.hosts[1] = network.reboot(b)
    give_certificates(cluster.hosts, ["prefill-0", "decode-0"])
    cluster.start_agent(cluster.hosts[1])
    assert "class B" in cluster.until("died", "decode-0", after=n_events)["text"]
    cluster.until("started", "decode-0", after=n_events)
    assert answers_at(a, ready["endpoint"]) == right
    assert a.run(f"{PYTHON} twolane.cli down --yes") == "stopped\n"
    wait_until(lambda: _ours(cluster.hosts) == 2)  # the agents


def _commands(host: Host) -> list[str]:
    return [command_of(pid).decode(errors="replace") for pid in host.pids()]


def _ours(hosts: list[Host]) -> int:
    """How many of our processes run there."""
    return sum(host.run("ps -eo args").count("-m twolane.") for host in hosts)


def declared_off_though_it_is_frozen(cluster: Cluster) -> None:
    """Host b's worker counts as dead; when it goes on, nobody believes it, and it is ended."""
    b, frozen, n_events = cluster.hosts[1], cluster.epoch("decode-0"), len(cluster.events())
    b.freeze()
    cluster.until("lost", "b", after=n_events)
    assert cluster.say_off("b") == "b is off: proof of class C"
    # it was not alive before either: the router must have the proof
    wait_until(lambda: (frozen, "gone") in [(w.epoch, w.state) for w in cluster.status().workers])
    b.thaw()

    def is_another() -> bool:
        epoch = cluster.epoch("decode-0")
        assert epoch != frozen, "an epoch that was declared dead serves"
        return epoch != 0

    wait_until(is_another)
    wait_until(lambda: sum("twolane.deploy\0worker" in line for line in _commands(b)) == 1)


def test_a_frozen_hosts_seats_stay_empty_until_a_proof_frees_them(
    network: Network, tmp_path: Path
) -> None:
    cluster = Cluster(network, tmp_path)
    a, b = cluster.hosts
    cluster.up()
    cluster.until("ready")
    before = {w.worker_id: w.epoch for w in cluster.status().workers}
    b.freeze()
    lost = cluster.until("lost", "b")
    assert lost["text"] == "lost 1 seat (silent; no fence command): decode-0"
    wait_until(lambda: "lost 1 seat since" in a.run(f"{PYTHON} twolane.cli status"))
    b.thaw()
    cluster.until("found", "b")
    assert "died" not in {event["kind"] for event in cluster.events()}
    assert {w.worker_id: w.epoch for w in cluster.status().workers} == before
    n_events = len(cluster.events())
    assert "proof of class A" in a.run(f"{PYTHON} twolane.cli fence decode-0 --yes")
    cluster.until("started", "decode-0", after=n_events)
    wait_until(lambda: cluster.epoch("decode-0") not in (before["decode-0"], 0))
    declared_off_though_it_is_frozen(cluster)
    former = cluster.epoch("decode-0")
    b.kill()
    n_events, at_s = len(cluster.events()), time.monotonic()
    assert cluster.say_off("b") == "b is off: proof of class C"
    assert "class C" in cluster.until("died", "decode-0", after=n_events)["text"]
    print(f"proven {time.monotonic() - at_s:.2f} s after its host was off")
    cluster.hosts[1] = network.reboot(b)
    give_certificates(cluster.hosts, ["prefill-0", "decode-0"])
    cluster.start_agent(cluster.hosts[1])
    cluster.until("started", "decode-0", after=n_events)
    wait_until(lambda: cluster.epoch("decode-0") not in (former, 0))
    assert a.run(f"{PYTHON} twolane.cli down --yes") == "stopped\n"
