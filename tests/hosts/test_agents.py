"""A cluster over two hosts by their agents alone, with certificates everywhere between them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.fake_hosts import Host, Network
from tests.hosts.ray_hosts import PYTHON, wait_until

CERTS = "/tmp/home/certs"
TLS = f"--tls-ca {CERTS}/ca.crt --tls-cert {CERTS}/{{0}}.crt --tls-key {CERTS}/{{0}}.key"
ENV = "env -u TWOLANE_SECRET_FILE HOME=/tmp/home CUDA_VISIBLE_DEVICES="
pytestmark = pytest.mark.timeout(300)


class AgentHosts:
    """Two hosts with an agent each, and a topology file on the first of them."""

    def __init__(self, network: Network, tmp_path: Path) -> None:
        self.hosts = [network.host("a"), network.host("b")]
        self._log_dir = tmp_path
        names = ["agent/a", "agent/b", "controller/controller", "router/router-0"]
        names += ["worker/prefill-0", "worker/decode-0"]
        certs = tmp_path / "certs"
        for arguments in (["init"], ["issue", *names]):
            command = [sys.executable, "-m", "twolane.cli", "certs", *arguments]
            subprocess.run([*command, "--dir", str(certs)], check=True, capture_output=True)
        topology = {
            "launcher": "agents",
            "tls_ca": f"{CERTS}/ca.crt",
            "tls_cert": f"{CERTS}/{{name}}.crt",
            "tls_key": f"{CERTS}/{{name}}.key",
            "ports": "7300-7399",
            "hosts": [
                {"name": host.name, "agent": f"{host.ip}:7210", "seats": 1} for host in self.hosts
            ],
            "pools": [{"role": "prefill"}, {"role": "decode"}],
        }
        for host in self.hosts:
            shutil.copytree(certs, host.root / CERTS.lstrip("/"))
            (host.root / "tmp/home/cluster.yaml").write_text(json.dumps(topology))
            self.start_agent(host)

    def start_agent(self, host: Host) -> None:
        files = TLS.format(host.name)
        host.bg(
            f"{ENV} {PYTHON} -m twolane.deploy agent --host-name {host.name} "
            f"--listen {host.ip}:7210 --gpus '' {files}",
            self._log_dir / f"agent-{host.name}.log",
        )

    def twolane(self, arguments: str) -> str:
        """What a command of ours prints on the first host."""
        return self.hosts[0].run(f"{ENV} {PYTHON} -m twolane.cli {arguments}", timeout_s=120)

    def up(self) -> None:
        """From the first host. Returns when the cluster answers."""
        log = self._log_dir / "up.log"
        self.hosts[0].bg(
            f"{ENV} {PYTHON} -m twolane.cli up --json --topology /tmp/home/cluster.yaml", log
        )
        wait_until(
            lambda: '"kind": "ready"' in log.read_text() or '"failed"' in log.read_text(), 120
        )
        assert '"kind": "ready"' in log.read_text(), log.read_text()

    def ours(self) -> list[str]:
        """The command lines of routers and workers on both hosts."""
        lines = "".join(host.run("ps -eo args --no-headers") for host in self.hosts)
        return [line for line in lines.splitlines() if "--spec-from-stdin" in line]


@pytest.fixture
def agents(network: Network, tmp_path: Path) -> AgentHosts:
    return AgentHosts(network, tmp_path)


def test_cluster_over_agents_answers_with_certificates_and_leaves_nothing(
    agents: AgentHosts,
) -> None:
    agents.up()
    assert agents.twolane("generate 'Once upon a time' --max-tokens 8 --temperature 0")
    status = json.loads(agents.twolane("status --json"))
    hosts = {worker["worker_id"]: worker["host"] for worker in status["workers"]}
    assert hosts == {"prefill-0": "a", "decode-0": "b"}
    (decode,) = [each for each in status["workers"] if each["worker_id"] == "decode-0"]
    assert [peer["transport"] for peer in decode["transports"]] == ["tcp"]
    b = agents.hosts[1]
    b.freeze()
    wait_until(lambda: "lost 1 seat" in agents.twolane("status"), 60)
    b.thaw()
    wait_until(lambda: "lost 1 seat" not in agents.twolane("status"), 60)
    assert "class A" in agents.twolane("fence decode-0")
    assert agents.twolane("generate 'Once upon a time' --max-tokens 8 --temperature 0")
    assert agents.twolane("down") == "stopped\n"
    assert agents.ours() == []
