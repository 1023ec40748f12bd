"""A stop ends all of a cluster whenever it comes, or says what may still run. Processes on the
loopback stand for hosts; one that is frozen is silent, and a frozen worker is one that loads."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.real_cluster import fake_model
from tests.deploy.agent.agent_cluster import AgentCluster, stopped, wait_until
from tests.timing import PATIENT

PAIR: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode"}]
N_TOKENS, N_ANSWERS = 250, 6
PACE = {"fake_step_s": 0.02, "fake_paced": True}  # so that an answer takes five seconds


@pytest.fixture
def cluster() -> Iterator[AgentCluster]:
    with AgentCluster((1, 1), PAIR, timing=PATIENT) as cluster:
        yield cluster


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[AgentCluster]:
    model = str(fake_model(tmp_path, **PACE))
    timing = {**PATIENT, "stop_grace_s": 60.0}
    with AgentCluster((1, 1), PAIR, timing=timing, model=model) as cluster:
        yield cluster


def agent(cluster: AgentCluster, host: str) -> psutil.Process:
    return psutil.Process(cluster.agents[host].pid)


def loading(cluster: AgentCluster) -> list[psutil.Process]:
    """The workers' processes, as soon as there are both."""

    def found() -> list[psutil.Process]:
        return [its for its in cluster.processes() if "worker" in its.cmdline()]

    wait_until(lambda: len(found()) == 2)
    return found()


def door_opens(cluster: AgentCluster, n: int = 1) -> None:
    """The launcher takes operators' commands."""
    wait_until(lambda: len([*cluster.folder.glob("twolane-[0-9]*/ctl.sock")]) == n)


@contextmanager
def answering(cluster: AgentCluster) -> Iterator[None]:
    """Long answers run inside the block. All of them are whole at its end."""
    with ThreadPoolExecutor(N_ANSWERS) as threads:
        answers = [threads.submit(cluster.answers, N_TOKENS) for _ in range(N_ANSWERS)]
        wait_until(lambda: len(cluster.status().requests) == N_ANSWERS)
        yield
        assert [answer.result() for answer in answers] == [True] * N_ANSWERS


def test_a_stop_amid_a_start_names_what_may_have_come_up_on_a_host_that_fell_silent(
    cluster: AgentCluster,
) -> None:
    launcher = cluster.launcher()
    loading(cluster)
    with stopped(agent(cluster, "node-b")):
        done = cluster.command("down", "--yes")
        assert (done.returncode, done.stdout) == (5, "")
        assert "decode-0 may still run on node-b, which is silent" in done.stderr
        assert launcher.close() == 5
    by_topology = ["down", "--yes", "--topology", str(cluster.topology)]
    wait_until(lambda: cluster.command(*by_topology).returncode == 0)
    wait_until(lambda: not cluster.processes())  # it had come up, or its start is called off


def test_a_stop_amid_an_attach_ends_what_ran_before_and_names_the_host_that_is_silent() -> None:
    routers = [{"routers": 0}, {"routers": 1}]
    with AgentCluster((1, 1), PAIR, of_hosts=routers, timing=PATIENT) as cluster:
        first = cluster.launcher()
        first.until("ready")
        first.kill()
        before = cluster.pids()
        with stopped(agent(cluster, "node-b")):
            launcher = cluster.launcher()
            launcher.until("starting", "router-0")
            door_opens(cluster)
            done = cluster.command("down", "--yes")
            assert done.returncode == 5
            assert "may still run on node-b, which is silent" in done.stderr
            assert launcher.close() == 5
            left = {its.pid for its in cluster.processes()}
            assert left == {before["router-0"], before["decode-0"]}
        assert cluster.command("down", "--yes", "--topology", str(cluster.topology)).returncode == 0
        assert cluster.processes() == []


def test_a_controller_that_is_stopped_amid_a_start_ends_and_starts_nothing_more(
    cluster: AgentCluster,
) -> None:
    controller = cluster.controller()
    loading(cluster)[0].send_signal(signal.SIGSTOP)
    door_opens(cluster)
    done = cluster.command("down", "--yes")
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert cluster.processes() == []
    assert controller.wait(60) == 0


@pytest.mark.parametrize("by_topology", [False, True])
def test_a_second_stop_does_not_hurry_the_first_and_routers_end_before_workers(
    paced: AgentCluster, by_topology: bool
) -> None:
    launcher = paced.launcher()
    launcher.until("ready")
    how = ["down", "--yes"]
    if by_topology:
        launcher.kill()
        how += ["--topology", str(paced.topology)]
    with answering(paced), ThreadPoolExecutor(2) as threads:
        if not by_topology:
            hurried = threads.submit(paced.command, *how)
            launcher.until("stopping")
        assert paced.command(*how).returncode == 0
        assert by_topology or hurried.result().returncode == 0
    assert paced.processes() == []


def test_by_the_topology_a_worker_that_loads_for_a_frozen_launcher_ends_too(
    cluster: AgentCluster,
) -> None:
    launcher = cluster.launcher()
    worker = loading(cluster)[0]
    (its_launcher,) = psutil.Process(launcher.process.pid).children()
    worker.send_signal(signal.SIGSTOP)
    with stopped(its_launcher):
        done = cluster.command("down", "--yes", "--topology", str(cluster.topology))
        assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
        assert cluster.processes() == []
    launcher.close()


def test_by_the_topology_silence_and_time_are_told_with_5(paced: AgentCluster) -> None:
    how = ["down", "--yes", "--topology", str(paced.topology)]
    launcher = paced.launcher()
    launcher.until("ready")
    with answering(paced):
        launcher.kill()
        done = paced.command(*how, "--timeout-s", "0.1")
        assert done.returncode == 5
        assert "Error: still running after 0.1 s, on node-a, node-b" in done.stderr
    with stopped(*(agent(paced, host) for host in paced.hosts)):
        done = paced.command(*how)
        assert done.returncode == 5
        assert "what ran on node-a, node-b may still run: silent" in done.stderr
    assert paced.command(*how).returncode == 0


def test_a_host_that_has_left_the_topology_is_told_of(cluster: AgentCluster) -> None:
    first = cluster.launcher()
    first.until("ready")
    first.kill()
    value = json.loads(cluster.topology.read_text())
    value["hosts"] = value["hosts"][:1]
    value["hosts"][0]["seats"] = 2
    cluster.topology.write_text(json.dumps(value))
    told = cluster.launcher().until("lost", "node-b")
    assert told["text"] == "it is not in the topology any more; decode-0 may still run there"
