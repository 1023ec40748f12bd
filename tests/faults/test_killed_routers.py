"""Routers are killed under SDK streams: every answer comes whole, and is the one that it would
have been."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.real_cluster import settled
from twolane import Client, Completion
from twolane.testing import LocalCluster, start_local

N_ROUTERS, N_STREAMS = 3, 12
QUICK: dict[str, Any] = {"heartbeat_s": 0.2, "suspicion_s": 0.6, "lease_s": 1.2}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 0, "top_logprobs": 2},
    {"temperature": 0.8, "seed": 9, "stop": ["unlikely to come"]},
]


def ask(client: Client, number: int) -> Completion:
    kind = {"seed": number} | KINDS[number % len(KINDS)]
    return client.generate(f"prompt {number}", max_tokens=120, **kind)


def told(answer: Completion) -> tuple[Any, ...]:
    return answer.token_ids, answer.text, answer.finish_reason


def play(cluster: LocalCluster, n_kills: int) -> tuple[int, int]:
    """Returns how many answers came, and how many takeovers they took."""
    stop, begun = threading.Event(), threading.Barrier(N_STREAMS + 1)

    def stream(number: int) -> tuple[int, int]:
        n_answers = n_takeovers = 0
        with Client(cluster.endpoint) as client:
            ask(client, number)  # from now on it knows that there are several routers
            begun.wait(60)
            while not stop.is_set():
                answer = ask(client, number)
                assert told(answer) == expected[number], f"{number}, answer {n_answers}"
                n_answers += 1
                n_takeovers += answer.ledger.takeovers
        return n_answers, n_takeovers

    with Client(cluster.endpoint) as client:
        expected = {number: told(ask(client, number)) for number in range(N_STREAMS)}
    with ThreadPoolExecutor(N_STREAMS) as pool:
        streams = [pool.submit(stream, number) for number in range(N_STREAMS)]
        begun.wait(60)
        try:
            for name in itertools.islice(itertools.cycle(range(N_ROUTERS)), n_kills):
                kill(cluster, f"router-{name}")
        finally:
            stop.set()
        counts = [future.result(120) for future in streams]
    return sum(n for n, _ in counts), sum(n for _, n in counts)


def kill(cluster: LocalCluster, name: str) -> None:
    n_events = len(cluster.events)
    cluster.kill(name)
    cluster.wait_for("started", name, after=n_events, timeout_s=300)  # pauses grow
    time.sleep(0.5)  # some answers at the router that is back; none of them depends on it


def check(n_kills: int) -> None:
    with start_local(engine="fake", routers=N_ROUTERS, **QUICK) as cluster:
        n_answers, n_takeovers = play(cluster, n_kills)
        assert n_answers >= n_kills
        assert n_takeovers
        asyncio.run(settled(cluster, 2, within_s=12.0))


def test_streams_survive_their_routers() -> None:
    check(n_kills=3)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_streams_survive_two_hundred_kills() -> None:
    check(n_kills=200)
