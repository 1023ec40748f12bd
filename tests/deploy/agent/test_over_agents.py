"""A cluster over several agents, with processes on the loopback for hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, Launcher, stopped, wait_until
from tests.processes import is_alive
from tests.timing import PATIENT

POOLS: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode", "workers": 2}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[AgentCluster]:
    with AgentCluster((2, 1), POOLS, timing=PATIENT) as cluster:
        yield cluster


@pytest.fixture
def launcher(cluster: AgentCluster) -> Iterator[Launcher]:
    """One that has started or found the cluster. All is up at the end again."""
    launcher = cluster.launcher()
    launcher.until("ready")
    wait_until(lambda: len(cluster.alive()) == 3)
    yield launcher
    if launcher.process.poll() is None:
        launcher.kill()


def test_workers_are_on_the_hosts_that_have_seats(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    assert cluster.answers()
    status = cluster.status()
    hosts = {worker.worker_id: worker.host for worker in status.workers}
    assert sorted(hosts.values()) == ["node-a", "node-a", "node-b"]
    wait_until(lambda: [host.state for host in cluster.status().hosts] == ["up", "up"])


def test_all_serves_on_without_a_launcher_and_the_next_one_adopts_it(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    before = cluster.pids()
    launcher.kill()
    assert cluster.answers()
    again = cluster.launcher()
    for name in before:
        again.until("started", name)
    assert cluster.pids() == before
    assert "died" not in {event["kind"] for event in again.events}
    os.kill(before["decode-0"], signal.SIGKILL)
    again.until("died", "decode-0")
    wait_until(lambda: again.kinds("decode-0").count("started") == 2)
    again.kill()


def test_launcher_that_another_one_has_replaced_ends_and_leaves_all_running(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    before = cluster.pids()
    other = cluster.launcher()
    assert launcher.close() == 1
    assert "of controller" in launcher.events[-1]["text"]
    other.until("started", "decode-0")
    assert cluster.pids() == before
    assert cluster.answers()
    other.kill()


def test_agent_that_is_killed_takes_nobody_with_it_and_its_successor_finds_all(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    before, n_events = cluster.pids(), launcher.n_events()
    cluster.kill_agent("node-a")
    lost = launcher.until("lost", "node-a", after=n_events)
    assert cluster.answers()
    cluster.start_agent("node-a")
    launcher.until("found", "node-a", after=launcher.number(lost))
    assert cluster.pids() == before
    os.kill(before["prefill-0"], signal.SIGKILL)
    died = launcher.until("died", "prefill-0")
    assert died["text"].endswith("(proof of class A)")


def test_nothing_is_started_on_the_seats_of_a_silent_host(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    name = next(w.worker_id for w in cluster.status().workers if w.host == "node-b")
    old, n_events = cluster.evidence(name), launcher.n_events()
    with stopped(psutil.Process(cluster.agents["node-b"].pid)):
        os.kill(old.pid, signal.SIGKILL)
        lost = launcher.until("lost", "node-b", after=n_events)
        assert lost["text"] == f"lost 1 seat (silent; no fence command): {name}"
        wait_until(lambda: [host.state for host in cluster.status().hosts] == ["up", "silent"])
        shown = cluster.command("status", "--endpoint", f"unix:{admin(cluster)}").stdout
        assert "lost 1 seat since" in shown
        assert "(node-b silent; no fence command)" in shown
        refused = cluster.command("fence", "--yes", name)
        assert refused.returncode == 5
        assert "not proven: node-b silent; no fence command" in refused.stderr
        assert "died" not in launcher.kinds(name)
        assert cluster.answers(), "the other decode worker serves"
    launcher.until("died", name)
    wait_until(lambda: len(cluster.alive()) == 3)
    assert cluster.evidence(name).epoch != old.epoch


def test_fence_prints_the_class_of_its_proof(cluster: AgentCluster, launcher: Launcher) -> None:
    launcher.until("started", "decode-0")
    old = cluster.evidence("decode-0")
    done = cluster.command("fence", "--yes", "decode-0", "--reason", "dust")
    assert (done.returncode, done.stderr) == (0, "")
    plan, proof = done.stdout.splitlines()
    assert plan.startswith("decode-0: runs on node-")
    assert proof.startswith("decode-0 ")
    assert proof.endswith(" (proof of class A)")
    assert not is_alive(old.pid)
    assert ": fence (dust): decode-0: runs" in launcher.until("operator", "")["text"]
    unknown = cluster.command("fence", "--yes", "decode-7")
    assert unknown.returncode == 2
    assert "decode-7" in unknown.stderr


def test_fence_at_the_launchers_own_socket_works_without_routers(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    launcher.until("started", "decode-0")
    old = cluster.evidence("decode-0")
    (path,) = cluster.folder.glob("twolane-*/ctl.sock")
    done = cluster.command("fence", "--yes", "decode-0", "--endpoint", f"unix:{path}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" (proof of class A)\n")
    assert not is_alive(old.pid)


def test_zombie_of_a_host_that_an_operator_called_off_is_refused_and_killed(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    name = next(w.worker_id for w in cluster.status().workers if w.host == "node-b")
    old = cluster.evidence(name)
    early = cluster.command("fence", "--yes", "--host", "node-b", "--i-saw-it-off")
    assert early.returncode == 5
    assert "node-b answers" in early.stderr
    n_events = launcher.n_events()
    with stopped(psutil.Process(cluster.agents["node-b"].pid), psutil.Process(old.pid)):
        launcher.until("lost", "node-b", after=n_events)
        done = cluster.command("fence", "--yes", "--node", "node-b", "--i-saw-it-off")
        assert done.stdout == "node-b is off: proof of class C\n", done.stderr
        died = launcher.until("died", name)
        assert died["text"].endswith("(proof of class C)")
        wait_until(lambda: state_of(cluster, old.epoch) in ("gone", ""))
    wait_until(lambda: not is_alive(old.pid))
    wait_until(lambda: len(cluster.alive()) == 3)
    assert cluster.evidence(name).epoch != old.epoch


def test_down_leaves_no_process(cluster: AgentCluster, launcher: Launcher) -> None:
    wait_until(lambda: len(cluster.processes()) == 4)
    done = cluster.command("down", "--yes")
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert launcher.close() == 0
    assert cluster.processes() == []


def test_down_and_up_say_what_may_still_run_on_a_silent_host(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    (name,) = (w.worker_id for w in cluster.status().workers if w.host == "node-b")
    n_events = launcher.n_events()
    with stopped(psutil.Process(cluster.agents["node-b"].pid)):
        launcher.until("lost", "node-b", after=n_events)
        done = cluster.command("down", "--yes")
        told = f"{name} may still run on node-b, which is silent"
        assert (done.returncode, done.stdout) == (5, "")
        assert done.stderr.endswith(f"Error: not proven: {told}\n")
        assert launcher.close() == 5
        assert launcher.events[-1]["kind"] != "stopped"
        (left,) = cluster.processes()
        assert left.pid == cluster.evidence(name).pid
    wait_until(
        lambda: (
            cluster.command("down", "--yes", "--topology", str(cluster.topology)).returncode == 0
        )
    )
    assert cluster.processes() == []


def test_down_ends_a_cluster_that_has_no_launcher(
    cluster: AgentCluster, launcher: Launcher
) -> None:
    launcher.kill()
    assert cluster.command("down", "--yes").returncode == 3
    done = cluster.command("down", "--yes", "--topology", str(cluster.topology))
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert cluster.processes() == []


def state_of(cluster: AgentCluster, epoch: int) -> str:
    return next((w.state for w in cluster.status().workers if w.epoch == epoch), "")


def admin(cluster: AgentCluster) -> str:
    (path,) = cluster.folder.glob("twolane-agent-*/admin.sock")
    return str(path)


def test_worker_that_nobody_needs_any_more_ends_itself() -> None:
    pools = [{"role": "both", "workers": 1}]
    with AgentCluster((1,), pools, timing={"orphan_s": 2.0}) as cluster:
        launcher = cluster.launcher()
        launcher.until("ready")
        pids = cluster.pids()
        launcher.kill()
        cluster.kill_agent("node-a")
        os.kill(pids["router-0"], signal.SIGKILL)
        wait_until(lambda: not is_alive(pids["colocated-0"]))
        log = (cluster.folder / "node-a" / "logs" / "colocated-0.log").read_text()
        assert "its agent and all that it serves have been silent for 2 s" in log
