"""`twolane.testing.start_local`, as other people's tests use it."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.cluster.real_cluster import inspect, left_over, settled
from tests.deploy.agent.agent_cluster import wait_until
from tests.ports import router_ports
from tests.processes import is_alive
from tests.timing import PATIENT
from twolane import UnavailableError
from twolane.calls import resuming
from twolane.prompts import RequestOptions
from twolane.testing import LocalCluster, start_local


def alive(cluster: LocalCluster) -> dict[str, int]:
    """The epochs of the workers that take work, by name."""
    return {w.worker_id: w.epoch for w in cluster.status().workers if w.state == "alive"}


def tokens(cluster: LocalCluster, prompt: str = "Once upon a time") -> tuple[int, ...]:
    with cluster.client() as client:
        return client.generate(prompt, max_tokens=24, temperature=0, seed=1).token_ids


def test_a_disaggregated_cluster_on_the_bundled_model_answers_and_leaves_nothing() -> None:
    with start_local(max_context_tokens=512, pages=256, **PATIENT) as cluster:
        workers = sorted(cluster.status().workers, key=lambda worker: worker.worker_id)
        assert [(w.worker_id, w.roles, w.state) for w in workers] == [
            ("decode-0", ("decode",), "alive"),
            ("prefill-0", ("prefill",), "alive"),
        ]
        assert cluster.wait_for("started", "decode-0")["text"] == "cpu float32"
        processes = [psutil.Process(cluster.pid(w)) for w in ("router-0", "decode-0", "prefill-0")]
        with cluster.client() as client:
            completion = client.generate("Once upon a time", max_tokens=24, temperature=0, seed=1)
        assert completion.ledger.transfer_pages == 1
        assert completion.ledger.transfer_bytes > 0
        assert (completion.ledger.prefill_worker, completion.ledger.decode_worker) == (
            "prefill-0",
            "decode-0",
        )
        assert tokens(cluster) == completion.token_ids
    assert not any(map(is_alive, processes))
    with start_local(max_context_tokens=512, pages=256, colocated=1) as cluster:
        assert tokens(cluster) == completion.token_ids


def test_a_killed_worker_comes_back_under_a_new_epoch_and_serves() -> None:
    with start_local(engine="fake", **PATIENT) as cluster:
        before = {w.worker_id: w.epoch for w in cluster.status().workers}
        expected = tokens(cluster)
        n_events = len(cluster.events)
        cluster.kill("decode-0")
        cluster.wait_for("died", "decode-0", after=n_events)
        started = cluster.wait_for("started", "decode-0", after=n_events)
        assert started["epoch"] != before["decode-0"]
        assert tokens(cluster) == expected
        after = {"prefill-0": before["prefill-0"], "decode-0": started["epoch"]}
        wait_until(lambda: alive(cluster) == after)


def caught(cluster: LocalCluster) -> str:
    """The decode worker of the request that runs, stopped, so that it does not end meanwhile; empty
    if it has ended."""
    for name in {request.decode_worker for request in cluster.status().requests}:
        cluster.kill(name, signal.SIGSTOP)
        if cluster.status().requests:
            return name
        cluster.kill(name, signal.SIGCONT)
    return ""


def test_a_worker_killed_amid_an_answer_costs_no_token() -> None:
    with start_local(engine="fake", decode=2, prefill=1, **PATIENT) as cluster:
        with cluster.client() as client:
            expected = client.generate("tell me", max_tokens=2000, temperature=0, seed=1).token_ids
            busy = ""
            while not busy:
                stream = client.stream("tell me", max_tokens=2000, temperature=0, seed=1)
                chunks = [chunk for _, chunk in zip(range(20), stream, strict=False)]
                got = [token for chunk in chunks for token in chunk.tokens]
                busy = caught(cluster)
            cluster.kill(busy)
            completion = stream.completion()
        assert 0 < len(got) < 2000
        assert [token.index for token in completion.tokens] == list(range(2000))
        assert completion.token_ids == expected
        assert completion.ledger.attempts == 2


def test_a_killed_router_comes_back_at_the_same_endpoint() -> None:
    with start_local(engine="fake", colocated=1, **router_ports(), **PATIENT) as cluster:
        expected = tokens(cluster)
        metrics = cluster.wait_for("started", "router-0")["metrics"]
        n_events = len(cluster.events)
        cluster.kill("router-0")
        started = cluster.wait_for("started", "router-0", after=n_events)
        assert (started["endpoint"], started["metrics"]) == (cluster.endpoint, metrics)
        assert started["http"] == cluster.http_endpoint
        wait_until(lambda: bool(alive(cluster)))
        assert tokens(cluster) == expected
        health = f"http://{cluster.http_endpoint}/health"
        wait_until(lambda: httpx2.get(health, timeout=30).status_code == 200)  # it lags behind


def test_a_cluster_without_the_http_door_has_no_such_endpoint() -> None:
    with start_local(engine="fake", colocated=1, no_http=True) as cluster:
        assert (cluster.http_endpoint, cluster.status().http_endpoint) == ("", "")
        assert len(tokens(cluster)) == 24


async def test_answers_of_the_only_router_go_on_after_its_death_or_their_rows_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resuming, "RESTART_S", 60.0)  # the machine may be slow
    more = {**router_ports(), **PATIENT, "exact": True, "grace_s": 1.0}
    with start_local(max_context_tokens=2048, pages=512, **more) as cluster:
        async with cluster.aclient() as client:
            how: RequestOptions = {"max_tokens": 250, "ignore_eos": True, "temperature": 0}
            calm = await client.generate("Tale 0", **how)
            streams = [client.stream(f"Tale {n}", **how) for n in range(2)]
            for stream in streams:
                await anext(stream)
            epochs = {
                w.worker_id: w.epoch for w in (await asyncio.to_thread(cluster.status)).workers
            }
            endpoints = [w.endpoint for w in (await asyncio.to_thread(cluster.status)).workers]
            n_events = len(cluster.events)
            cluster.kill("router-0")
            streams[1].cancel()
            answer = await streams[0].completion()
            assert answer.token_ids == calm.token_ids
            assert answer.ledger.takeovers >= 1
        await asyncio.to_thread(cluster.wait_for, "started", "router-0", after=n_events)
        status = await settled(cluster, n_workers=2, within_s=10)
        assert {w.worker_id: w.epoch for w in status.workers} == epochs, "no worker was restarted"
        assert not left_over([await inspect(endpoint) for endpoint in endpoints])
        async with cluster.aclient() as client:
            completion = await client.generate("Once upon a time", max_tokens=24)
        assert completion.ledger.attempts == 1


def test_a_cluster_that_cannot_start_raises_with_the_reason() -> None:
    with (
        pytest.raises(UnavailableError, match="no directory /nowhere"),
        start_local("/nowhere"),
    ):
        pass


def test_a_cluster_started_on_a_thread_outlives_it() -> None:
    stack = start_local(engine="fake", colocated=1)
    opened: list[LocalCluster] = []
    thread = threading.Thread(target=lambda: opened.append(stack.__enter__()))
    thread.start()
    thread.join()
    try:
        assert len(tokens(opened[0])) == 24
    finally:
        stack.__exit__(None, None, None)


def test_ray_runs_the_same_cluster(tmp_path: Path) -> None:
    with start_local(
        engine="fake", launcher="ray", colocated=1, log_dir=tmp_path, **PATIENT
    ) as cluster:
        expected = tokens(cluster)
        processes = psutil.Process(cluster._process.pid).children(recursive=True)
        assert {"ray::ServiceActor"} <= {" ".join(p.cmdline())[:17] for p in processes}
        n_events = len(cluster.events)
        cluster.kill("colocated-0")
        cluster.wait_for("started", "colocated-0", after=n_events)
        assert tokens(cluster) == expected
        assert "serves on" in (tmp_path / "colocated-0.log").read_text()
    assert not any(map(is_alive, processes))
