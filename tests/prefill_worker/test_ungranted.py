"""Held rows without a grant: reported once, dropped late, left alone once granted."""

from __future__ import annotations

import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.kvtransfer import reasons
from twolane.params import SamplingParams
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.ungranted import Ungranted
from twolane.v1 import worker_pb2
from twolane.worker.config import WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.rows import Row

CONFIG = PrefillConfig(unplaced_after_s=1.0, drop_after_s=4.0)


@pytest.fixture
def context() -> WorkerContext:
    return WorkerContext(WorkerConfig(worker_id="p"), FakeEngine(FakeEngineConfig()))


def held_row(context: WorkerContext, decode_epoch: int, since_s: float = 0.0) -> Row:
    number = context.next_number()
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=f"r{number}", attempt=1),
        roles=[worker_pb2.ROLE_PREFILL],
        token_ids=range(20),
        n_prompt=20,
        decode=worker_pb2.WorkerAddress(worker_id="d", epoch=decode_epoch),
    )
    row = Row(assign, SamplingParams(), context.spec, number=number, arrived_s=0.0)
    row.times.first_token_s = since_s
    return row


def reported(context: WorkerContext) -> list[tuple[str, str]]:
    return [
        (event.key.submission_id, event.reason)
        for event in context.outbox.take()
        if event.kind == worker_pb2.RowEvent.KIND_UNPLACED
    ]


def test_a_row_is_reported_once_until_its_attempt_is_forgotten(context: WorkerContext) -> None:
    row = held_row(context, context.epoch + 1)
    ungranted = Ungranted(context, CONFIG, lambda row: False)
    ungranted.look(lambda: [row], 0.9)
    assert reported(context) == []
    for now in (1.1, 1.3):
        ungranted.look(lambda: [row], now)
    assert reported(context) == [("r1", reasons.BUSY)]
    assert ungranted.n_reported == 1
    ungranted.forget(row.attempt)
    assert ungranted.n_reported == 0
    ungranted.look(lambda: [row], 1.5)
    assert reported(context) == [("r1", reasons.BUSY)]


def test_a_row_that_was_granted_pages_is_left_alone(context: WorkerContext) -> None:
    row = held_row(context, context.epoch + 1)
    ungranted = Ungranted(context, CONFIG, lambda row: True)
    assert ungranted.look(lambda: [row], 100.0) is None
    assert reported(context) == []


@pytest.mark.parametrize(("beyond", "drop_after_s"), [(1, 4.0), (-1, 8.0)])
def test_of_two_workers_that_wait_for_each_other_the_one_of_the_lower_epoch_drops_first(
    context: WorkerContext, beyond: int, drop_after_s: float
) -> None:
    row = held_row(context, context.epoch + beyond)
    ungranted = Ungranted(context, CONFIG, lambda row: False)
    assert ungranted.look(lambda: [row], drop_after_s - 0.2) is None
    assert ungranted.look(lambda: [row], drop_after_s) is row


def test_the_last_row_in_order_of_turn_is_dropped(context: WorkerContext) -> None:
    first, last, young = (held_row(context, context.epoch + 1, s) for s in (0.0, 0.5, 5.0))
    ungranted = Ungranted(context, CONFIG, lambda row: False)
    assert ungranted.look(lambda: [first, last, young], 5.0) is last


def test_rows_are_looked_at_ten_times_a_second_at_most(context: WorkerContext) -> None:
    n_looks = 0

    def held() -> list[Row]:
        nonlocal n_looks
        n_looks += 1
        return []

    ungranted = Ungranted(context, CONFIG, lambda row: False)
    for tick in range(100):
        ungranted.look(held, tick * 0.01)
    assert n_looks <= 11
