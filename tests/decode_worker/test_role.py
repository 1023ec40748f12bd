"""The decode role by hand, with rows that it adopts: growth, promises, preemption."""

from __future__ import annotations

import pytest

from twolane.decode_worker.config import DecodeConfig
from twolane.decode_worker.role import DecodeRole
from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.engine.step import RowResult, SampledToken
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.config import StepLimits, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RowRefusedError
from twolane.worker.rows import Row, RowState

PARAMS = SamplingParams(max_tokens=60, seed=7)
LEAST = DecodeConfig(least_growth_tokens=1)


@pytest.fixture
def context() -> WorkerContext:
    config = WorkerConfig(worker_id="d", limits=StepLimits(step_tokens=64, decode_rows=3))
    return WorkerContext(config, FakeEngine(FakeEngineConfig(n_pages=8)))


def row(
    context: WorkerContext, n_tokens: int = 16, *, priority: int = 0, growth_tokens: int = 0
) -> Row:
    number = context.next_number()
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=f"r{number}", attempt=1),
        token_ids=[(i + 20 * number) % 256 for i in range(n_tokens)],
        n_prompt=n_tokens,
        priority=priority,
        growth_tokens=growth_tokens,
    )
    return Row(assign, PARAMS, context.spec, number=number, arrived_s=float(number))


def hand_over(context: WorkerContext, role: DecodeRole, one: Row) -> Row:
    """What a prefill role of the same worker does."""
    assert role.try_promise(one, one.n_prompt_pages)
    pages = context.pages.try_take(one.n_prompt_pages)
    assert pages is not None
    one.pages = pages
    one.advance(RowState.COMPUTING)
    (result,) = context.engine.run([one.work(one.n_tokens)])
    one.n_computed = one.n_tokens
    one.append(result.tokens[0].token)
    role.adopt(one, SampledToken(result.tokens[0].token), 0.0)
    return one


def step(context: WorkerContext, role: DecodeRole) -> list[int]:
    work = role.plan(64, 0.0)
    results = {result.row: result for result in context.engine.run(work)}
    role.apply(results, 0.0)
    return [w.row for w in work]


def kinds(context: WorkerContext) -> list[str]:
    return [
        worker_pb2.RowEvent.Kind.Name(event.kind).removeprefix("KIND_")
        for event in context.outbox.take()
        if isinstance(event, worker_pb2.RowEvent)
    ]


def test_row_grows_page_by_page_to_its_end(context: WorkerContext) -> None:
    role = DecodeRole(context)
    one = hand_over(context, role, row(context))
    prompt = list(one.assign.token_ids)
    pages: set[int] = set()
    while one.state is RowState.RUNNING:
        step(context, role)
        pages.add(len(one.pages))
    assert one.token_ids[16:] == expected_answer(prompt, PARAMS, 60)
    assert pages == {2, 3, 4, 5}
    assert kinds(context) == ["JOINED", "FINISHED"]
    assert context.reserve.n_promised == 0
    assert context.pages.counts().used == 0


def test_promise_keeps_new_rows_out_until_it_is_given_back(context: WorkerContext) -> None:
    role = DecodeRole(context)
    one = hand_over(context, role, row(context, growth_tokens=60))
    assert context.reserve.n_promised == 4
    second = row(context, growth_tokens=60)
    assert not role.try_promise(second, second.n_prompt_pages), "5 of 8 pages are spoken for"
    role.cancel(one.attempt, 0.0)
    assert role.try_promise(second, second.n_prompt_pages)


def test_a_promise_is_replaced_only_by_one_that_can_be_kept(context: WorkerContext) -> None:
    role = DecodeRole(context)
    one = row(context, growth_tokens=60)
    assert role.try_promise(one, 1)
    assert not role.try_promise(one, 5), "with 4 to grow into, of 8"
    assert context.reserve.n_promised == 4
    assert role.try_promise(one, 4), "its own promise is not in its way"
    assert context.reserve.n_promised == 4


def test_batch_takes_no_more_rows_than_its_limit(context: WorkerContext) -> None:
    role = DecodeRole(context, LEAST)
    for _ in range(3):
        hand_over(context, role, row(context))
    assert not role.try_promise(row(context), 1)


def test_youngest_of_the_lowest_priority_gives_way_and_the_first_in_turn_never_does(
    context: WorkerContext,
) -> None:
    role = DecodeRole(context, LEAST)
    first, high, low = (
        hand_over(context, role, row(context, 32, priority=priority)) for priority in (0, 5, 0)
    )
    kinds(context)
    while RowState.OVER not in (first.state, high.state, low.state):
        step(context, role)
    assert low.state is RowState.OVER
    assert kinds(context) == ["PREEMPTED"]
    while RowState.OVER not in (first.state, high.state):
        step(context, role)
    assert (first.state, high.state) == (RowState.OVER, RowState.RUNNING)
    assert kinds(context) == ["PREEMPTED"]
    while high.state is RowState.RUNNING:
        step(context, role)
    assert kinds(context) == ["FINISHED"]


def test_pages_of_a_preempted_row_are_found_again_by_its_resume(context: WorkerContext) -> None:
    role = DecodeRole(context)
    one = hand_over(context, role, row(context))
    for _ in range(20):
        step(context, role)
    role.cancel(one.attempt, 0.0)
    assert context.pages.match_length(one.chain_hashes(one.n_tokens)) == 2


def test_answers_stay_out_of_the_index_when_the_engine_is_not_exact(context: WorkerContext) -> None:
    role = DecodeRole(context, DecodeConfig(index_answers=False))
    one = hand_over(context, role, row(context))
    for _ in range(20):
        step(context, role)
    role.cancel(one.attempt, 0.0)
    assert context.pages.counts().cached == 0


def test_row_that_outgrows_the_pool_is_refused_before_it_waits(context: WorkerContext) -> None:
    with pytest.raises(RowRefusedError) as refusal:
        DecodeRole(context).check_fits(row(context, 80, growth_tokens=60))
    assert refusal.value.reason == "too_large"


def test_a_row_is_planned_again_while_its_token_is_being_sampled(context: WorkerContext) -> None:
    role = DecodeRole(context)
    one = hand_over(context, role, row(context))
    known = list(one.token_ids)
    first, second = role.plan(64, 0.0), role.plan(64, 0.0)
    assert [(w.start, w.follows) for w in first + second] == [(16, False), (17, True)]
    for share, token in ((first, 40), (second, 41)):
        role.apply({one.number: RowResult(one.number, (SampledToken(token),))}, 0.0)
        assert [w.row for w in share] == [one.number]
    assert one.token_ids == [*known, 40, 41]
    assert one.n_ahead == 0


def test_a_row_whose_token_ends_it_by_length_is_not_planned_again(context: WorkerContext) -> None:
    role = DecodeRole(context)
    one = hand_over(context, role, row(context))
    while one.n_tokens - one.n_prompt < (PARAMS.max_tokens or 0) - 1:
        step(context, role)
    assert len(role.plan(64, 0.0)) == 1
    assert role.plan(64, 0.0) == []


def test_pages_of_a_row_cancelled_amid_a_step_stay_until_that_step_is_done(
    context: WorkerContext,
) -> None:
    role = DecodeRole(context)
    one = hand_over(context, role, row(context))
    role.plan(64, 0.0)
    context.returns.on_submitted()
    assert role.cancel(one.attempt, 0.0)
    assert context.pages.counts().used == len(one.pages)
    context.returns.on_done()
    role.apply({one.number: RowResult(one.number, (SampledToken(4),))}, 0.0)
    assert context.pages.counts().used == 0
    assert one.token_ids[-1] != 4
