"""The small pure parts: the waiting queue, the store, the ledger."""

from typing import Any

import pytest

from twolane.params import SamplingParams
from twolane.router.dispatch.queue import WaitingQueue
from twolane.router.requests.answer import Answer
from twolane.router.requests.ledger import Timeline, make_ledger
from twolane.router.requests.request import Job, Label, Request, RequestState
from twolane.router.store import ADMITTED, Ask, Held, LocalStore, Verdict
from twolane.security.keys import TenantLimits
from twolane.v1 import sampling_pb2, worker_pb2

P, D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


def request(name: str, priority: int = 0, model: str = "m") -> Request:
    job = Job(
        request_id=name,
        model=model,
        token_ids=(1,),
        params=SamplingParams(max_tokens=10),
        arrived=0.0,
        priority=priority,
    )
    return Request(job, Answer(None, (), 0), sampling_pb2.SamplingParams())


def drain(queue: WaitingQueue, model: str = "m") -> list[str]:
    names = []
    while (head := queue.head(model)) is not None:
        queue.discard(head)
        names.append(head.job.request_id)
    return names


def test_queue_is_by_priority_then_age_with_resumed_ones_ahead() -> None:
    queue = WaitingQueue()
    for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 5)]:
        queue.push(request(name, priority))
    resumed = request("r", -9)
    resumed.life.advance(RequestState.RUNNING)
    resumed.life.advance(RequestState.RESUMING)
    queue.push(resumed)
    assert len(queue) == 5
    assert queue.n_ahead("m", 5) == 3
    assert queue.n_ahead("m", 0) == 5
    assert queue.n_ahead("other", 0) == 0
    assert drain(queue) == ["r", "b", "d", "a", "c"]
    assert len(queue) == 0
    assert queue.models() == []


def test_queue_forgets_what_ended_while_it_waited() -> None:
    queue = WaitingQueue()
    first, second = request("a"), request("b")
    queue.push(first)
    queue.push(second)
    first.life.advance(RequestState.CANCELLED)
    queue.discard(first)
    queue.discard(first)
    assert len(queue) == 1
    assert queue.n_ahead("m", 0) == 1
    assert drain(queue) == ["b"]


def test_queue_evicts_the_youngest_of_the_least_priority_and_never_a_resumed_one() -> None:
    queue = WaitingQueue()
    resumed = request("r", -9)
    resumed.life.advance(RequestState.RUNNING)
    resumed.life.advance(RequestState.RESUMING)
    queue.push(resumed)
    assert queue.last() is None
    for name, priority, model in [("a", 0, "m"), ("b", -5, "n"), ("c", -5, "m"), ("d", 5, "m")]:
        queue.push(request(name, priority, model))
    names = []
    while (last := queue.last()) is not None:
        queue.discard(last)
        names.append(last.job.request_id)
    assert names == ["c", "b", "a", "d"]
    assert drain(queue) == ["r"]


def test_queue_keeps_models_apart() -> None:
    queue = WaitingQueue()
    queue.push(request("a", model="m"))
    queue.push(request("b", model="n"))
    assert drain(queue, "n") == ["b"]
    assert drain(queue, "m") == ["a"]


async def test_store_lets_one_submission_hold_a_label_until_it_is_released() -> None:
    store, label = LocalStore(), Label("", "x")

    async def admit(name: str, label: Label = label) -> Verdict:
        limits = TenantLimits()
        return await store.admit(Ask(label=label, submission_id=name, limits=limits, n_tokens=0))

    assert await admit("first") is ADMITTED
    assert await admit("first") is ADMITTED
    assert await admit("second") == Held("first")
    store.release("second", 0)
    assert await admit("second") == Held("first"), "it was not the second's to release"
    assert await admit("second", Label("other tenant", "x")) is ADMITTED
    store.release("first", 0)
    assert await admit("third") is ADMITTED


def test_store_lets_a_submission_hold_one_label() -> None:
    store, first, second = LocalStore(), Label("", "x"), Label("other tenant", "x")
    assert store.claim(first, "s") is ADMITTED
    assert store.claim(second, "s") == Held("s")
    assert store.claim(second, "other") is ADMITTED
    for name in ("s", "other"):
        store.release(name, 0)
    assert not len(store)


def test_ledger_sums_what_was_spent_over_attempts_and_keeps_the_routers_own_clock() -> None:
    timeline = Timeline(arrived=10.0)
    timeline.dispatched = 10.5
    assert timeline.note_token(11.0) is None
    assert timeline.note_token(11.25) == 0.25
    timeline.note_figures(1, P, worker_pb2.RowFigures(prefill_s=1, cached_tokens=16))
    timeline.note_figures(2, P, worker_pb2.RowFigures(prefill_s=9))
    timeline.note_figures(2, P, worker_pb2.RowFigures(prefill_s=2, transfer_bytes=7))
    timeline.note_figures(2, D, worker_pb2.RowFigures(decode_s=0.5))
    ledger = make_ledger(
        timeline,
        prompt_tokens=3,
        output_tokens=2,
        attempts=2,
        takeovers=0,
        prefill_worker="p",
        decode_worker="d",
    )
    assert ledger.prefill_s == 3
    assert ledger.decode_s == 0.5
    assert ledger.transfer_bytes == 7
    assert ledger.cached_tokens == 16
    assert (ledger.queued_s, ledger.ttft_s, ledger.total_s) == (0.5, 1.0, 1.25)
    assert (ledger.attempts, ledger.prefill_worker, ledger.decode_worker) == (2, "p", "d")


def test_growth_is_the_reserve_at_first_and_more_after_each_preemption() -> None:
    row = request("a")
    assert row.growth_tokens(4) == 4
    assert row.growth_tokens(64) == 10
    row.answer.tokens += [1, 2, 3]
    row.n_preempted = 1
    assert row.growth_tokens(1) == 4
    row.n_preempted = 2
    assert row.growth_tokens(1) == 7, "all that may still come"
    assert row.n_tokens == 4


@pytest.mark.parametrize("field", ["prefill_wait_s", "transfer_s", "decode_wait_s"])
def test_ledger_passes_every_duration_on(field: Any) -> None:
    timeline = Timeline(arrived=0.0)
    figures = worker_pb2.RowFigures()
    setattr(figures, field, 0.25)
    timeline.note_figures(1, P, figures)
    ledger = make_ledger(
        timeline,
        prompt_tokens=1,
        output_tokens=0,
        attempts=1,
        takeovers=0,
        prefill_worker="",
        decode_worker="",
    )
    assert getattr(ledger, field) == 0.25
