"""What a router makes of each word that a worker refuses with."""

from __future__ import annotations

import asyncio

import pytest

from twolane.errors import (
    DuplicateRequestError,
    OverloadedError,
    TakenOverError,
    UnavailableError,
)
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.scenario import scenario
from twolane.v1 import worker_pb2

PROMPT = [5, 6, 7, 8]
K = worker_pb2.RowEvent


@pytest.mark.parametrize("worker_id", ["p0", "d0"])
def test_label_in_use_at_a_worker_is_the_clients_error_at_once(worker_id: str) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers[worker_id].refuses = "request_in_use"
        started = asyncio.get_running_loop().time()
        outcome = await ask(router, message(PROMPT, request_id="order-7", max_tokens=9))
        assert isinstance(outcome.error, DuplicateRequestError)
        assert outcome.error.metadata["request_id"] == "order-7"
        assert outcome.ended_at - started < 0.05
        assert router.status().counters["attempts"] == 1
        cluster.workers[worker_id].refuses = ""
        again = await ask(router, message(PROMPT, request_id="order-7", max_tokens=9))
        assert again.tokens == expected_answer(PROMPT, 9), "the label is free here"

    play(script)


def test_answer_that_is_on_its_way_is_not_ended_by_a_later_request_of_its_label() -> None:
    def fault(router: Router, cluster: ScriptedCluster, p: str, d: str) -> None:
        (other,) = {"d0", "d1"} - {d}
        cluster.workers[other].refuses = "request_in_use"
        cluster.workers[other].later(1.0, setattr, cluster.workers[other], "refuses", "")
        cluster.workers[d].kill()

    scenario(0.2, fault)


@pytest.mark.parametrize("reason", ["draining", "queue_full"])
@pytest.mark.parametrize("worker_id", ["p0", "d0", "b0"])
def test_not_now_is_no_failure_of_the_request(reason: str, worker_id: str) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        worker = cluster.workers[worker_id]
        worker.refuses = reason
        asyncio.get_running_loop().call_later(20.0, setattr, worker, "refuses", "")
        outcome = await ask(router, message(PROMPT, max_tokens=9))
        assert outcome.tokens == expected_answer(PROMPT, 9)
        counters = router.status().counters
        assert counters[f"resumes.refused.{reason}"] > router.config.dispatch.max_failures
        assert counters[f"resumes.refused.{reason}"] < 40, "they come ever more slowly"

    play(script, ("b0",) if worker_id == "b0" else ("p0", "d0"))


def test_worker_that_refuses_for_ever_ends_the_wait_like_any_other() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["p0"].refuses = "queue_full"
        started = asyncio.get_running_loop().time()
        outcome = await ask(router, message(PROMPT, max_tokens=9))
        assert isinstance(outcome.error, OverloadedError)
        assert 5.0 <= outcome.ended_at - started < 6.5

    play(script, config=RouterConfig(admission=AdmissionConfig(queue_timeout_s=5.0)))


@pytest.mark.parametrize("reason", ["epoch", "tombstone", "too_large", ""])
def test_other_words_count_as_failures(reason: str) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        cluster.workers["d0"].refuses = reason or "unknown"
        outcome = await ask(router, message(PROMPT, max_tokens=9))
        assert isinstance(outcome.error, UnavailableError)
        assert outcome.error.metadata["failures"] == "9"
        assert outcome.error.metadata["reason"] == f"refused.{reason or 'unknown'}"

    play(script)


def test_row_that_another_router_has_taken_is_not_tried_again() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        task = asyncio.create_task(ask(router, message(PROMPT, max_tokens=90)))
        await asyncio.sleep(0.2)
        worker = cluster.workers["d0"]
        (row,) = worker.rows.values()
        worker.say(rows=[row.row_event(K.KIND_TAKEN, worker_pb2.ROLE_DECODE)])
        outcome = await task
        assert isinstance(outcome.error, TakenOverError)
        assert "another router" in outcome.error.message
        assert router.status().counters["attempts"] == 1

    play(script)
