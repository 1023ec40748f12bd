"""A row's lifecycle, its laws, and what is derived from its counters."""

from __future__ import annotations

from itertools import product

import pytest

from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import Page
from twolane.lifecycle import IllegalMoveError, Lifecycle
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.rows import MOVES, Row, RowState, by_turn

SPEC = FakeEngine(FakeEngineConfig(n_pages=64, page_tokens=16, max_context_tokens=100)).spec


def row(
    n_input: int = 20,
    *,
    n_prompt: int | None = None,
    max_tokens: int = 40,
    priority: int = 0,
    arrived_s: float = 0.0,
    number: int = 1,
) -> Row:
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id="r", attempt=1),
        token_ids=range(n_input),
        n_prompt=n_input if n_prompt is None else n_prompt,
        priority=priority,
    )
    params = SamplingParams(max_tokens=max_tokens)
    return Row(assign, params, SPEC, number=number, arrived_s=arrived_s)


ALLOWED = {
    ("WAITING", "COMPUTING"),
    ("WAITING", "RUNNING"),
    ("WAITING", "OVER"),
    ("COMPUTING", "HELD"),
    ("COMPUTING", "RUNNING"),
    ("COMPUTING", "OVER"),
    ("HELD", "RUNNING"),
    ("HELD", "OVER"),
    ("RUNNING", "OVER"),
}


@pytest.mark.parametrize(("start", "to"), list(product(RowState, RowState)))
def test_only_the_drawn_moves_are_allowed(start: RowState, to: RowState) -> None:
    life = Lifecycle(start, MOVES)
    if (start.name, to.name) in ALLOWED:
        life.advance(to)
        assert life.state is to
    else:
        with pytest.raises(IllegalMoveError):
            life.advance(to)


def test_row_may_not_run_before_its_prompt_is_computed() -> None:
    waiting = row()
    with pytest.raises(AssertionError):
        waiting.advance(RowState.RUNNING)


def test_row_may_not_claim_positions_that_its_pages_do_not_hold() -> None:
    computing = row(20)
    computing.pages = [Page(0)]
    computing.n_computed = 17
    with pytest.raises(AssertionError, match="pages too few"):
        computing.check()


def test_prompt_border_beyond_the_tokens_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        row(5, n_prompt=6)


@pytest.mark.parametrize(
    ("n_input", "n_prompt", "max_tokens", "growth_tokens", "pages"),
    [
        (16, 16, 40, 1, 0),  # the first token comes from prefill and is computed by nobody yet
        (16, 16, 40, 2, 1),
        (16, 16, 40, 17, 1),
        (16, 16, 40, 18, 2),
        (20, 20, 40, 13, 0),
        (20, 20, 40, 14, 1),
        (16, 16, 3, 1000, 1),  # no more than max_tokens
        (16, 10, 7, 1000, 0),  # of which six are there already
        (90, 90, 500, 1000, 1),  # no more than the context: 100
    ],
)
def test_growth_counts_pages_of_positions_that_can_come(
    n_input: int, n_prompt: int, max_tokens: int, growth_tokens: int, pages: int
) -> None:
    grown = row(n_input, n_prompt=n_prompt, max_tokens=max_tokens)
    assert grown.growth_pages_for(growth_tokens) == pages


def test_work_samples_only_at_the_end_of_the_known_tokens() -> None:
    computing = row(40)
    computing.pages = [Page(i) for i in range(3)]
    first = computing.work(30)
    assert (first.start, first.n_new, first.sample) == (0, 30, False)
    computing.n_computed = 30
    last = computing.work(10)
    assert (last.start, last.n_new, last.sample) == (30, 10, True)


def test_turn_is_by_priority_then_by_waiting_time() -> None:
    rows = [
        row(priority=0, arrived_s=1.0, number=1),
        row(priority=5, arrived_s=3.0, number=2),
        row(priority=0, arrived_s=0.5, number=3),
        row(priority=5, arrived_s=2.0, number=4),
    ]
    assert [r.number for r in by_turn(rows)] == [4, 2, 3, 1]
