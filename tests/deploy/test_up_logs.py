"""What can be seen of a cluster: its logs, its ends, its workers' metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.deploy.agent.agent_cluster import stopped, wait_until
from tests.deploy.test_up_process import ONE, command
from tests.ports import free_ports
from tests.timing import PATIENT
from twolane.admin import AdminClient
from twolane.deploy.cli.up_command import _prints_to, _tell_and_log
from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.process_end import how_it_ended
from twolane.deploy.process.scratch import CRASHED, keep_logs
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve
from twolane.testing import LocalCluster, start_local
from twolane.v1 import acts_pb2


def is_alive(cluster: LocalCluster, epoch: int) -> bool:
    """Whether the router gives it work: then the epoch before it is gone."""
    return any((w.epoch, w.state) == (epoch, "alive") for w in cluster.status().workers)


def test_logs_tell_of_start_join_refusal_loss_and_restart_and_metrics_are_where_one_wants(
    tmp_path: Path,
) -> None:
    base, _ = free_ports(2)
    with (
        start_local(
            engine="fake", prefill=1, decode=1, log_dir=tmp_path, worker_metrics_port=base,
            **PATIENT,
        ) as cluster,
        cluster.client() as client,
    ):  # fmt: skip
        metrics = {w.worker_id: w.metrics_endpoint for w in cluster.status().workers}
        assert metrics == {"prefill-0": f"127.0.0.1:{base}", "decode-0": f"127.0.0.1:{base + 1}"}
        targets = f"http://{cluster.status().metrics_endpoint}/targets"
        with urllib.request.urlopen(targets, timeout=10) as answer:
            found = {target for group in json.load(answer) for target in group["targets"]}
        assert {cluster.status().metrics_endpoint, *metrics.values()} == found
        with urllib.request.urlopen(f"http://127.0.0.1:{base}/metrics", timeout=10) as page:
            shown = page.read().decode()
        assert 'worker="prefill-0"' in shown
        with pytest.raises(Exception, match="context"):
            client.generate(token_ids=[1] * 100_000, max_tokens=5)
        n_events = len(cluster.events)
        (controller,) = psutil.Process(cluster._process.pid).children()
        with stopped(controller):  # else its proof might be heard before the end of the session
            cluster.kill("decode-0")
            wait_until(lambda: "suspect" in {w.state for w in cluster.status().workers})
        died = cluster.wait_for("died", "decode-0", after=n_events)
        assert died["text"] == "killed by SIGKILL"
        epoch = cluster.wait_for("started", "decode-0", after=n_events)["epoch"]
        wait_until(
            lambda: (epoch, "alive") in [(w.epoch, w.state) for w in cluster.status().workers]
        )
        with AdminClient(cluster.admin_endpoint) as admin:
            asked = acts_pb2.ReadLogRequest(name="decode-0", lines=200, from_file=True)
            log: acts_pb2.ReadLogResponse = admin.call("ReadLog", asked)
        assert log.source == "the launcher"
        serves = [line for line in log.lines if "decode-0 serves at" in line]
        assert len(serves) == 2, "one of each incarnation"
    router = (tmp_path / "router-0.log").read_text()
    members = r"twolane\.router\.members\.membership"
    for part in (
        r"I twolane\.deploy\.process\.child: router-0 serves at 127\.0\.0\.1:\d+",
        rf"I {members}: worker decode-0 announces itself: decode, epoch",
        rf"I {members}: worker prefill-0 \(\w+\) is alive: its session is open",
        r"I twolane\.router\.refusal_log: refused 1 requests \(\w+\); the last: ",
        rf"W {members}: worker decode-0 \(\w+\) is suspect: ",
        rf"W {members}: worker decode-0 \(\w+\) is gone: ",
    ):
        assert re.search(part, router), f"{part} is not in\n{router}"
    launcher = (tmp_path / "launcher.log").read_text()
    assert '"died", "name": "decode-0"' in launcher
    assert "killed by SIGKILL" in launcher
    worker = (tmp_path / "prefill-0.log").read_text()
    for line in worker.splitlines():
        assert " I " in line, f"a clean end leaves no warning: {line}"


def test_quieter_levels_leave_out_what_is_well(tmp_path: Path) -> None:
    with start_local(engine="fake", colocated=1, log_dir=tmp_path, log_level="warning", **PATIENT):
        pass
    assert (tmp_path / "router-0.log").read_text() == ""
    assert (tmp_path / "colocated-0.log").read_text() == ""


def test_logs_of_what_crashed_outlive_the_cluster(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("--json", *ONE), env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["kind"] == "started" and event["name"] == "colocated-0":
                pid = event["pid"]
            if event["kind"] == "ready":
                os.kill(pid, signal.SIGKILL)
            if event["kind"] == "restarting":
                process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    (kept,) = tmp_path.glob("twolane-logs-*")
    assert f"the logs are kept in {kept}" in told
    assert {"router-0.log", "colocated-0.log"} <= {path.name for path in kept.iterdir()}
    assert not list(tmp_path.glob("twolane-[0-9]*")), "the rest is gone"


def test_of_kept_logs_the_newest_stay_and_calm_ends_keep_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for n in range(8):
        scratch = tmp_path / f"twolane-{n}-x"
        scratch.mkdir()
        (scratch / "w.log").write_text(str(n))
        assert keep_logs(scratch) is None
        (scratch / CRASHED).touch()
        kept = keep_logs(scratch)
        assert kept is not None
        os.utime(kept, (n, n))
    left = {(path / "w.log").read_text() for path in tmp_path.glob("twolane-logs-*")}
    assert left == {"3", "4", "5", "6", "7"}


def test_base_ports_of_metrics_are_each_pools_own_or_follow_on() -> None:
    def ports(value: object) -> dict[str, int]:
        cluster = resolve(parse_topology(value))
        return {worker.worker_id: worker.metrics_port for worker in cluster.workers("h:1")}

    pools = [{"role": "prefill", "workers": 2}, {"role": "decode", "workers": 1}]
    assert set(ports({"pools": pools}).values()) == {0}
    all_of_them = {"workers": {"worker_metrics_port": 9200}, "pools": pools}
    assert ports(all_of_them) == {"prefill-0": 9200, "prefill-1": 9201, "decode-0": 9202}
    own = [pools[0], {**pools[1], "worker_metrics_port": 9300}]
    assert ports({"pools": own}) == {"prefill-0": 0, "prefill-1": 0, "decode-0": 9300}


@pytest.mark.parametrize(
    ("end", "words"),
    [("os._exit(3)", "exited with 3"), ("os.kill(os.getpid(), 11)", "killed by SIGSEGV")],
)
async def test_how_a_process_ended_that_is_no_child_of_ours_is_told(end: str, words: str) -> None:
    """Its parent reaps it, as Ray's daemon does."""
    child = f"import os, sys; sys.stdin.readline(); {end}"
    parent = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=sys.stdin)\n"
        "print(child.pid, flush=True)\nchild.wait()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    pidfd = os.pidfd_open(int(await process.stdout.readline()))
    try:
        process.stdin.write(b"go\n")
        await process.wait()
        assert await how_it_ended(pidfd) in (words, "is gone")  # older kernels do not know
    finally:
        os.close(pidfd)


def test_a_full_disk_below_the_launchers_log_ends_no_cluster(tmp_path: Path) -> None:
    died = Event(kind=Kind.DIED, name="decode-0", text="killed by SIGKILL")
    told: list[Event] = []
    with _prints_to(Path("/dev/full")) as log:
        for _ in range(100):  # more than a buffer holds
            _tell_and_log(told.append, log, tmp_path, died)
    assert told == [died] * 100
    assert (tmp_path / CRASHED).exists()


def test_a_log_that_cannot_be_made_is_told_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").mkdir()
    says = pytest.raises(StartError, match=r"launcher\.log cannot be written: Is a directory")
    with says, _prints_to(tmp_path / "launcher.log"):
        pass
