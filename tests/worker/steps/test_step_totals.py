"""What capacities are learnt from: rows and tokens of decode steps, prompts of prefill steps."""

from __future__ import annotations

from twolane.engine.step import Page, RowResult, RowWork, SampledToken
from twolane.params import SamplingParams
from twolane.worker.steps.step_totals import StepTotals

PARAMS = SamplingParams(max_tokens=9)


def work(row: int, n_new: int = 1) -> RowWork:
    return RowWork(row, [1] * 10, 10 - n_new, n_new, [Page(0)], 10, PARAMS, True)


def result(row: int, n_tokens: int) -> RowResult:
    return RowResult(row, (SampledToken(5),) * n_tokens)


def test_a_row_counts_once_a_step_and_each_of_its_tokens() -> None:
    totals = StepTotals()
    totals.note([work(1), work(2)], [result(1, 3), result(2, 1)], 2, 0.5)
    assert (totals.done.decode_rows, totals.done.decode_tokens) == (2, 4)
    assert (totals.done.decode_steps, totals.done.decode_s) == (1, 0.5)


def test_a_step_with_prompts_and_rows_tells_about_neither() -> None:
    totals = StepTotals()
    totals.note([work(1), work(2, n_new=6)], [result(1, 1), result(2, 1)], 1, 0.5)
    assert totals.done.ByteSize() == 0
    totals.note([work(2, n_new=6)], [result(2, 1)], 0, 0.5)
    assert (totals.done.prefill_tokens, totals.done.prefill_squares) == (6, 36)
    assert totals.done.decode_tokens == 0
