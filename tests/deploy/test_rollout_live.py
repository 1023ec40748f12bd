"""A rollout of a cluster of processes, two of each role, under load and without another worker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.revisions import another_revision
from tests.ports import router_ports
from twolane.admin import AdminClient
from twolane.errors import PreconditionError
from twolane.testing import LocalCluster, start_local
from twolane.v1 import acts_pb2, cluster_pb2

QUICK: dict[str, Any] = {"heartbeat_s": 0.2, "suspicion_s": 1.5, "lease_s": 3.0}
PROMPTS = [f"Once upon a time, fox number {n} " * (1 + n) for n in range(4)]
GREEDY: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "seed": 7, "ignore_eos": True}
STEP = acts_pb2.StepRolloutRequest
WITHIN_S = 240.0
Tokens = tuple[int, ...]


def begin(admin: AdminClient, model_dir: Path | str, **how: Any) -> acts_pb2.ActResponse:
    asked = acts_pb2.StartRolloutRequest(model_dir=str(model_dir), **how)
    done: acts_pb2.ActResponse = admin.call("StartRollout", asked)
    return done


def step(admin: AdminClient, which: STEP.Step) -> None:
    admin.call("StepRollout", STEP(step=which))


def rollout(admin: AdminClient) -> cluster_pb2.RolloutStatus:
    asked = cluster_pb2.GetClusterStatusRequest(without_requests=True)
    found: cluster_pb2.GetClusterStatusResponse = admin.call("GetClusterStatus", asked)
    return found.rollout


def until(admin: AdminClient, state: str) -> cluster_pb2.RolloutStatus:
    end_s = time.monotonic() + WITHIN_S
    while (its := rollout(admin)).state != state:
        assert time.monotonic() < end_s, its
        time.sleep(0.05)
    return its


@contextmanager
def asked_all_the_time(cluster: LocalCluster) -> Iterator[list[dict[int, Counter[Tokens]]]]:
    """How often each answer of each prompt was given until now, by client. An error of a client is
    raised at the end."""
    stop = threading.Event()
    found: list[dict[int, Counter[Tokens]]] = [
        {n: Counter() for n in range(len(PROMPTS))} for _ in range(3)
    ]

    def ask(answers: dict[int, Counter[Tokens]]) -> None:
        with cluster.client() as client:
            while not stop.is_set():
                for n, prompt in enumerate(PROMPTS):
                    its = client.generate(prompt, **GREEDY)
                    answers[n][tuple(its.token_ids)] += 1
                    stop.wait(0.05)  # the processes that start need the cores, too

    with ThreadPoolExecutor(len(found)) as pool:
        asking = [pool.submit(ask, answers) for answers in found]
        try:
            yield found
        finally:
            stop.set()
        for each in asking:
            each.result()


def given(found: list[dict[int, Counter[Tokens]]]) -> list[set[Tokens]]:
    """The different answers of each prompt."""
    return [{answer for each in found for answer in [*each[n]]} for n in range(len(PROMPTS))]


def until_both_answered(found: list[dict[int, Counter[Tokens]]]) -> None:
    """Until each prompt has had the answer of either revision."""
    end_s = time.monotonic() + WITHIN_S
    while any(len(answers) < 2 for answers in given(found)):
        assert time.monotonic() < end_s, [len(answers) for answers in given(found)]
        time.sleep(0.05)


def whole(cluster: LocalCluster) -> list[Tokens]:
    """The answers of a cluster that has one revision."""
    with cluster.client() as client:
        return [tuple(client.generate(its, **GREEDY).token_ids) for its in PROMPTS]


def check(cluster: LocalCluster, found: list[dict[int, Counter[Tokens]]], *kinds: Any) -> None:
    """Every answer is that of one revision, and no request was begun again."""
    for answers in found:
        for n, counter in answers.items():
            assert {*counter} <= {kind[n] for kind in kinds}, PROMPTS[n]
    counters = cluster.status().counters
    assert not [name for name, n in counters.items() if name.startswith("resumes") and n]
    assert not counters.get("revision_changes")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_rollout_and_its_undo_half_way_lose_no_request(tmp_path: Path) -> None:
    new = another_revision(tmp_path / "new")
    with start_local(engine="fake", prefill=2, decode=2, **QUICK) as cluster:
        before = whole(cluster)
        with cluster.admin() as admin, asked_all_the_time(cluster) as found:
            with pytest.raises(PreconditionError, match="there is no directory"):
                begin(admin, tmp_path / "nowhere")
            with pytest.raises(PreconditionError, match="no rollout is under way"):
                step(admin, STEP.STEP_UNDO)
            begin(admin, new, canary_share=0.5)
            its = until(admin, "canary")
            assert sum(worker.is_new for worker in its.workers) == 2
            until_both_answered(found)
            step(admin, STEP.STEP_UNDO)
            until(admin, "undone")
            assert not any(worker.is_new for worker in rollout(admin).workers)
        assert whole(cluster) == before
        answers = given(found)
        assert [len(each) for each in answers] == [2] * len(PROMPTS)
        others = [(each - {its}).pop() for each, its in zip(answers, before, strict=True)]
        check(cluster, found, before, others)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["fake", "model"])
def test_rollout_to_its_end_gives_answers_of_one_revision_alone(
    engine: str, tmp_path: Path
) -> None:
    """Exact mode: not a bit of an answer may come from the other weights."""
    new = another_revision(tmp_path / "new")
    how: dict[str, Any] = {"engine": engine, "exact": engine == "model", **QUICK}
    with start_local(prefill=2, decode=2, **how) as cluster:
        before = whole(cluster)
        with cluster.admin() as admin, asked_all_the_time(cluster) as found:
            begin(admin, new)
            until(admin, "done")
        after = whole(cluster)
        assert all(one != other for one, other in zip(before, after, strict=True))
        check(cluster, found, before, after)
        with start_local(new, prefill=1, decode=1, **how) as alone:
            assert whole(alone) == after


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_rollout_goes_on_when_the_router_that_took_it_dies(tmp_path: Path) -> None:
    new = another_revision(tmp_path / "new")
    more = {"routers": 2, **router_ports(2), **QUICK}
    with start_local(engine="fake", prefill=2, decode=2, **more) as cluster:
        with cluster.admin() as admin:
            begin(admin, new)
        cluster.kill("router-0")
        with AdminClient(f"{cluster.admin_endpoint}.1") as other:
            its = until(other, "done")
        assert all(worker.is_new for worker in its.workers)
        assert whole(cluster)
