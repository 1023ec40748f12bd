"""The prefill role by hand: no loop, no network; the caller is clock and engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.params import SamplingParams
from twolane.prefill_worker.batching import BatchingConfig
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.learnt_batching import LearntBatching
from twolane.prefill_worker.role import PrefillRole
from twolane.v1 import worker_pb2
from twolane.worker.config import WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RowRefusedError
from twolane.worker.rows import REPLAYED_TOKENS, Row, RowState

PARAMS = SamplingParams(max_tokens=20, seed=7)


@pytest.fixture
def context() -> WorkerContext:
    return WorkerContext(WorkerConfig(worker_id="p"), FakeEngine(FakeEngineConfig(n_pages=10)))


def row(
    context: WorkerContext, n_tokens: int, *, salt: int = 0, n_prompt: int | None = None
) -> Row:
    number = context.next_number()
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=f"r{number}", attempt=1),
        roles=[worker_pb2.ROLE_PREFILL],
        token_ids=[(i + salt) % 256 for i in range(n_tokens)],
        n_prompt=n_prompt or n_tokens,
        decode=worker_pb2.WorkerAddress(worker_id="d", epoch=99),
    )
    return Row(assign, PARAMS, context.spec, number=number, arrived_s=0.0)


def step(context: WorkerContext, role: PrefillRole, n_tokens: int) -> list[tuple[int, int]]:
    """One step; returns (row number, positions computed) of each row."""
    work = role.plan(n_tokens, 0.0)
    results = {result.row: result for result in context.engine.run(work)}
    role.apply(results, 0.0)
    return [(w.row, w.n_new) for w in work]


def test_prompt_is_computed_in_chunks_and_held_for_its_decode_worker(
    context: WorkerContext,
) -> None:
    role = PrefillRole(context)
    only = row(context, 50)
    role.accept(only, 0.0)
    assert [step(context, role, 20) for _ in range(3)] == [[(1, 20)], [(1, 20)], [(1, 10)]]
    assert only.state is RowState.HELD
    assert role.sender.held_pages == 4, "the last one in part"
    (columns,) = only.log.since(0)[0]
    assert list(columns.token_ids) == expected_answer(range(50), PARAMS, 1)
    assert not context.outbox.take()
    assert step(context, role, 20) == []


def test_a_resumed_answer_that_is_replayed_is_so_a_few_tokens_a_step() -> None:
    engine = FakeEngine(FakeEngineConfig(n_pages=40))
    engine.spec = replace(engine.spec, indexes_answers=False)
    context = WorkerContext(WorkerConfig(worker_id="p"), engine)
    role = PrefillRole(context)
    resumed = row(context, 70, n_prompt=30)
    role.accept(resumed, 0.0)
    role.accept(row(context, 300), 0.0)
    assert step(context, role, 200) == [(1, 30 + REPLAYED_TOKENS), (2, 170 - REPLAYED_TOKENS)]
    assert step(context, role, 200) == [(1, REPLAYED_TOKENS), (2, 130 + REPLAYED_TOKENS)]
    assert step(context, role, 200) == [(1, 40 - 2 * REPLAYED_TOKENS)]
    assert resumed.n_tokens == 71, "the next token is sampled when all are there"


def test_resumed_answers_that_are_replayed_start_side_by_side() -> None:
    """Each takes as little of a step as it computes in it, however long it is."""
    engine = FakeEngine(FakeEngineConfig(n_pages=80))
    engine.spec = replace(engine.spec, indexes_answers=False)
    context = WorkerContext(WorkerConfig(worker_id="p"), engine)
    role = PrefillRole(context)
    for _ in range(3):
        role.accept(row(context, 300, n_prompt=10), 0.0)
    role.accept(row(context, 20), 0.0)
    n = 10 + REPLAYED_TOKENS
    assert step(context, role, 200) == [(1, n), (2, n), (3, n), (4, 20)]


def test_nothing_is_learnt_from_steps_in_which_an_answer_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine(FakeEngineConfig(n_pages=40))
    engine.spec = replace(engine.spec, indexes_answers=False)
    batching = BatchingConfig(window_s=None)
    role = PrefillRole(
        WorkerContext(WorkerConfig(worker_id="p"), engine), PrefillConfig(batching=batching)
    )
    alone: list[bool] = []
    planned = LearntBatching.planned

    def note(self: LearntBatching, n_tokens: int, now: float, *, is_alone: bool) -> None:
        alone.append(is_alone)
        planned(self, n_tokens, now, is_alone=is_alone)

    monkeypatch.setattr(LearntBatching, "planned", note)
    context = role._context
    role.accept(row(context, 40, n_prompt=10), 0.0)
    n_steps = 0
    while step(context, role, context.limits.step_tokens):
        n_steps += 1
    role.accept(row(context, 20), 0.0)
    step(context, role, context.limits.step_tokens)
    assert alone == [False] * n_steps + [True]
    assert n_steps == 2


def test_pages_are_offered_when_their_step_is_submitted_and_not_again(
    context: WorkerContext,
) -> None:
    role = PrefillRole(context)
    role.accept(row(context, 50), 0.0)
    held = []
    for _ in range(3):
        work = role.plan(20, 0.0)
        role.on_submitted(work, "mark", 0.0)
        held.append(role.sender.held_pages)
        role.apply({result.row: result for result in context.engine.run(work)}, 0.0)
        assert role.sender.held_pages == held[-1]
    assert held == [1, 2, 4], "those that a chunk fills, and at last the one in part"


def test_a_step_without_a_mark_offers_its_pages_when_it_is_done(context: WorkerContext) -> None:
    role = PrefillRole(context)
    role.accept(row(context, 50), 0.0)
    work = role.plan(50, 0.0)
    role.on_submitted(work, None, 0.0)
    assert role.sender.held_pages == 0
    role.apply({result.row: result for result in context.engine.run(work)}, 0.0)
    assert role.sender.held_pages == 4


def test_each_mark_is_of_its_own_step_though_the_next_is_planned(context: WorkerContext) -> None:
    role = PrefillRole(context)
    role.accept(row(context, 50), 0.0)
    steps = [role.plan(20, 0.0), role.plan(30, 0.0)]
    role.on_submitted(steps[0], "first", 0.0)
    assert role.sender.held_pages == 1
    role.on_submitted([], "of another role's", 0.0)
    assert role.sender.held_pages == 1
    role.on_submitted(steps[1], "second", 0.0)
    assert role.sender.held_pages == 4


def test_row_given_up_before_its_step_is_submitted_offers_nothing_and_the_others_do(
    context: WorkerContext,
) -> None:
    role = PrefillRole(context)
    gone, other = row(context, 20), row(context, 30, salt=60)
    role.accept(gone, 0.0)
    role.accept(other, 0.0)
    work = role.plan(50, 0.0)
    assert role.cancel(gone.attempt, 0.0)
    role.on_submitted(work, "mark", 0.0)
    assert role.sender.held_pages == 2
    role.apply({result.row: result for result in context.engine.run(work)}, 0.0)
    assert other.state is RowState.HELD
    role.sender.check_integrity()


def test_row_waits_until_all_pages_of_its_prompt_are_there(context: WorkerContext) -> None:
    role = PrefillRole(context, PrefillConfig(holding_cap_share=1.0))
    first, second = row(context, 100), row(context, 60, salt=9)
    role.accept(first, 0.0)
    role.accept(second, 0.0)
    assert step(context, role, 500) == [(1, 100)]
    assert (second.state, second.pages) == (RowState.WAITING, [])
    assert role.cancel(first.attempt, 1.0)
    assert step(context, role, 500) == [(2, 60)]


def test_started_rows_go_before_waiting_ones_and_share_what_is_left(context: WorkerContext) -> None:
    role = PrefillRole(context)
    for salt in range(3):
        role.accept(row(context, 30, salt=salt * 40), float(salt))
    assert step(context, role, 20) == [(1, 20)]
    assert step(context, role, 20) == [(1, 10), (2, 10)]
    assert step(context, role, 25) == [(2, 20), (3, 5)]


def test_full_queue_refuses(context: WorkerContext) -> None:
    role = PrefillRole(context, PrefillConfig(queue_limit=1))
    role.accept(row(context, 5), 0.0)
    with pytest.raises(RowRefusedError) as refusal:
        role.accept(row(context, 5), 0.0)
    assert refusal.value.reason == "queue_full"


def test_load_counts_rows_that_wait_and_tokens_to_compute(context: WorkerContext) -> None:
    role = PrefillRole(context)
    for salt in range(3):
        role.accept(row(context, 30, salt=salt * 40), 0.0)
    step(context, role, 20)
    load = worker_pb2.LoadReport()
    role.report(load, 0.0)
    assert (load.prefill_queue, load.prefill_queue_tokens) == (2, 70)


def test_failed_row_is_abandoned_and_told(context: WorkerContext) -> None:
    role = PrefillRole(context)
    bad = row(context, 50)
    bad.token_ids[30] = 999  # out of the vocabulary: the engine's own check finds it
    role.accept(bad, 0.0)
    step(context, role, 100)
    (event,) = context.outbox.take()
    assert isinstance(event, worker_pb2.RowEvent)
    assert (event.kind, event.reason) == (worker_pb2.RowEvent.KIND_FAILED, "engine")
    assert context.pages.counts().free == 10
