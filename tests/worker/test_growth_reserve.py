"""Pages promised to rows are nobody else's."""

from __future__ import annotations

from twolane.engine.allocator import PageAllocator
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.growth_reserve import GrowthReserve
from twolane.worker.rows import Row

SPEC = FakeEngine(FakeEngineConfig(n_pages=10, page_tokens=16)).spec


def row(number: int, n_input: int = 16) -> Row:
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=f"r{number}", attempt=1),
        token_ids=range(n_input),
        n_prompt=n_input,
    )
    return Row(assign, SamplingParams(max_tokens=1000), SPEC, number=number, arrived_s=0.0)


def test_new_work_takes_spare_pages_only() -> None:
    reserve = GrowthReserve(PageAllocator(10))
    reserve.promise(row(1), 5)
    assert reserve.n_spare == 5
    assert reserve.try_take_new(6) is None
    assert len(reserve.try_take_new(5) or []) == 5


def test_growth_draws_on_the_rows_own_promise_first() -> None:
    reserve = GrowthReserve(PageAllocator(10))
    promised, greedy = row(1), row(2)
    reserve.promise(promised, 5)
    reserve.promise(greedy, 1)
    assert reserve.n_spare == 4
    assert reserve.try_grow(greedy, 1 + 4)
    assert not reserve.try_grow(greedy, 1), "that page was promised to the other row"
    assert reserve.try_grow(promised, 2)
    assert reserve.n_promised == 3
    reserve.check_integrity()
    assert reserve.try_grow(promised, 3)
    assert reserve.n_promised == 0


def test_a_promise_replaces_the_one_before() -> None:
    reserve = GrowthReserve(PageAllocator(10))
    asked_again = row(1)
    reserve.promise(asked_again, 3)
    reserve.promise(asked_again, 2)
    assert reserve.n_promised == 2
    reserve.check_integrity()


def test_promise_ends_with_its_row() -> None:
    reserve = GrowthReserve(PageAllocator(10))
    over = row(1)
    reserve.promise(over, 5)
    reserve.forget(over)
    reserve.forget(over)
    assert reserve.n_spare == 10


def test_quarantine_that_eats_promised_pages_fails_growth_instead_of_breaking() -> None:
    pages = PageAllocator(10)
    reserve = GrowthReserve(pages)
    poor = row(1)
    reserve.promise(poor, 9)
    suspects = pages.try_take(8)
    assert suspects is not None
    pages.quarantine(suspects)
    assert reserve.n_spare == -7
    assert not reserve.try_grow(poor, 3)
    assert reserve.try_grow(poor, 2)
