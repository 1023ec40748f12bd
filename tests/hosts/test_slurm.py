"""The batch script that ships, under a real Slurm on two fake hosts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.fake_hosts import Network
from tests.hosts.ray_hosts import wait_until
from tests.hosts.slurm_hosts import TOOLS, Slurm
from twolane import Client
from twolane.config import ClientConfig

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "twolane.sbatch"
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS), reason="there is no slurm-wlm"
    ),
]


@pytest.fixture
def slurm(network: Network, tmp_path: Path) -> Iterator[Slurm]:
    with Slurm([network.host("a"), network.host("b")], tmp_path) as slurm:
        wait_until(lambda: "idle" in slurm.run("sinfo -h -o %T || true"))
        yield slurm


class Job:
    """A cluster of fake engines, one prefill and one decode worker."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        (slurm.folder / "cluster.yaml").write_text("pools: [{role: prefill}, {role: decode}]\n")
        self.id = slurm.run(
            f"sbatch --parsable --export=ALL,TWOLANE_PYTHON={sys.executable},CUDA_VISIBLE_DEVICES= "
            f"{SCRIPT} cluster.yaml --engine fake --json"
        )
        self._folder = slurm.folder / f"twolane-{self.id}"

    def wait_until_ready(self, n_times: int) -> None:
        """Since the job was submitted: each start of it counts."""
        wait_until(lambda: self.output().count('"kind": "ready"') == n_times)

    def output(self) -> str:
        path = self._slurm.folder / f"slurm-{self.id}.out"
        return path.read_text() if path.exists() else ""

    def signal(self, name: str) -> None:
        """To the batch script alone, as Slurm does before the time limit."""
        self._slurm.run(f"scancel --batch --signal={name} {self.id}")

    def state(self) -> str:
        return self._slurm.run(f"scontrol show job {self.id} -o | grep -o 'JobState=[A-Z]*'")

    def client(self) -> Client:
        """With the certificate that the first start has made."""
        certs = self._folder / "certs"
        files = ClientConfig(
            ca=certs / "ca.crt", cert=certs / "slurm-client.crt", key=certs / "slurm-client.key"
        )
        return Client(f"{self._slurm.hosts[0].ip}:7200", config=files)


def n_of_ours(slurm: Slurm) -> int:
    """Processes of twolane on both nodes."""
    return sum(host.run("ps -eo args").count(" -m twolane.") for host in slurm.hosts)


def test_a_job_serves_drains_at_term_and_serves_again_when_requeued(slurm: Slurm) -> None:
    job = Job(slurm)
    job.wait_until_ready(1)
    with job.client() as client:
        stream = client.stream("hello", max_tokens=4000, ignore_eos=True)
        n_tokens = len(next(stream).tokens)
        job.signal("TERM")
        n_tokens += sum(len(chunk.tokens) for chunk in stream)
        assert n_tokens == 4000  # it may end, and no other comes
    job.wait_until_ready(2)
    with job.client() as client:
        assert len(client.generate("hello", max_tokens=3, ignore_eos=True).tokens) == 3
    assert '"kind": "died"' not in job.output()
    job.signal("INT")
    wait_until(lambda: job.state() == "JobState=COMPLETED")
    wait_until(lambda: n_of_ours(slurm) == 0)


@pytest.mark.soak
def test_a_cancelled_job_leaves_no_process(slurm: Slurm) -> None:
    job = Job(slurm)
    job.wait_until_ready(1)
    assert n_of_ours(slurm) > 4
    slurm.run(f"scancel {job.id}")
    wait_until(lambda: n_of_ours(slurm) == 0)


@pytest.mark.soak
def test_a_job_whose_node_fails_is_requeued_and_serves_again(
    slurm: Slurm, network: Network
) -> None:
    job = Job(slurm)
    job.wait_until_ready(1)
    network.hosts[1].kill()
    wait_until(lambda: job.state() == "JobState=PENDING")
    slurm.hosts[1] = network.reboot(network.hosts[1])
    slurm.start_node(slurm.hosts[1])
    job.wait_until_ready(2)
    with job.client() as client:
        assert len(client.generate("hello", max_tokens=3, ignore_eos=True).tokens) == 3
