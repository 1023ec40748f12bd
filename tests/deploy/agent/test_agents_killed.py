"""Agents and launchers die at random under load: requests do not notice, workers live on."""

from __future__ import annotations

import random
import threading

import psutil
import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, Launcher, stopped, wait_until
from twolane import Client, TwolaneError

POOLS = [{"role": "prefill", "workers": 2}, {"role": "decode", "workers": 2}]
N_TOKENS = 40


class Load:
    """Requests one after the other on a few threads. `failures` are in words."""

    def __init__(self, endpoint: str, n_threads: int = 3) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._endpoint = endpoint
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(n_threads)]
        for thread in self._threads:
            thread.start()

    def goes_on(self) -> None:
        """Wait for a few more answers, or for a failure."""
        wanted = self.answered + 3
        wait_until(lambda: self.failures or self.answered >= wanted)

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with Client(self._endpoint) as client:
            while not self._is_over.is_set():
                try:
                    answer = client.generate(
                        token_ids=[5, 6, 7], max_tokens=N_TOKENS, ignore_eos=True
                    )
                except TwolaneError as error:
                    self.failures.append(repr(error))
                    return
                if len(answer.tokens) != N_TOKENS:
                    self.failures.append(f"{len(answer.tokens)} tokens")
                self.answered += 1


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
def test_random_deaths_of_agents_and_launchers_fail_no_request(rounds: int) -> None:
    chance = random.Random(rounds)
    with AgentCluster((2, 2), POOLS) as cluster:
        launcher = cluster.launcher()
        launcher.until("ready")
        before = cluster.pids()
        load = Load(cluster.endpoint)
        try:
            for _ in range(rounds):
                launcher = strike(chance, cluster, launcher)
                load.goes_on()
                assert load.failures == []
                assert cluster.pids() == before, "nobody dies that should live"
                assert len(cluster.processes()) == len(before), "no seat is held twice"
        finally:
            load.close()
        assert load.failures == []
        wait_until(lambda: [its.state for its in cluster.status().workers] == ["alive"] * 4)
        assert cluster.command("down", "--yes").returncode == 0
        assert launcher.close() == 0
        assert cluster.processes() == []


def strike(chance: random.Random, cluster: AgentCluster, launcher: Launcher) -> Launcher:
    """One fault, and its mend. Returns the launcher that is in charge then."""
    host = chance.choice(cluster.hosts)
    match chance.choice(["agent", "launcher", "both", "pause"]):
        case "agent":
            cluster.kill_agent(host)
            cluster.start_agent(host)
        case "launcher":
            launcher.kill()
            return attached(cluster)
        case "both":
            launcher.kill()
            cluster.kill_agent(host)
            cluster.start_agent(host)
            return attached(cluster)
        case "pause":
            n_events = launcher.n_events()
            with stopped(psutil.Process(cluster.agents[host].pid)):
                lost = launcher.until("lost", host, after=n_events)
            launcher.until("found", host, after=launcher.number(lost))
    return launcher


def attached(cluster: AgentCluster) -> Launcher:
    launcher = cluster.launcher()
    for name in cluster.pids():
        launcher.until("started", name)
    return launcher
