"""A row that gives its pages up amid a plan has no share in that step."""

from __future__ import annotations

from twolane.decode_worker.config import DecodeConfig
from twolane.decode_worker.role import DecodeRole
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import SampledToken
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.config import StepLimits, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.rows import Row, RowState


def running(context: WorkerContext, role: DecodeRole, n_tokens: int) -> Row:
    """A row that another role has computed: its next token is at position n_tokens."""
    number = context.next_number()
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=f"r{number}", attempt=1),
        token_ids=[number] * n_tokens,
        n_prompt=n_tokens,
        growth_tokens=1,
    )
    row = Row(assign, SamplingParams(seed=7), context.spec, number=number, arrived_s=float(number))
    assert role.try_promise(row, row.n_prompt_pages)
    row.pages = context.pages.try_take(row.n_prompt_pages) or []
    row.advance(RowState.COMPUTING)
    row.n_computed = row.n_tokens
    row.append(5)
    role.adopt(row, SampledToken(5), 0.0)
    return row


def test_row_whose_pages_went_to_another_is_not_in_the_step_that_took_them() -> None:
    config = WorkerConfig(worker_id="d", limits=StepLimits(step_tokens=64, decode_rows=3))
    context = WorkerContext(config, FakeEngine(FakeEngineConfig(n_pages=3)))
    role = DecodeRole(context, DecodeConfig(least_growth_tokens=1))
    first, last = running(context, role, 16), running(context, role, 24)
    work = role.plan(64, 0.0)
    assert last.state is RowState.OVER, "its pages are what the first row grows into"
    assert set(first.pages) & set(last.pages)
    assert [share.row for share in work] == [first.number]
