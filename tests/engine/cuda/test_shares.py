"""How a step is cut into passes."""

from __future__ import annotations

import pytest

from twolane.engine.step import Page, RowWork
from twolane.params import SamplingParams

pytest.importorskip("triton")

from twolane.engine.cuda.shares import Pass, split_passes


def row(name: int, start: int, n_new: int, n_tokens: int, n_prompt: int) -> RowWork:
    sample = start + n_new == n_tokens
    return RowWork(
        name, [5] * n_tokens, start, n_new, [Page(0)], n_prompt, SamplingParams(), sample
    )


def spans(passes: list[Pass]) -> list[tuple[list[tuple[int, int, int]], ...]]:
    return [
        tuple([(s.nth, s.start, s.n_new) for s in part] for part in (one.decode, one.chunks))
        for one in passes
    ]


def test_one_pass_takes_single_tokens_as_decode_rows_and_the_rest_as_chunks() -> None:
    rows = [(0, row(1, 9, 1, 10, 4)), (3, row(2, 0, 6, 8, 8)), (4, row(3, 0, 1, 1, 1))]
    assert spans(split_passes(rows, exact=False, most_rows=9)) == [
        ([(0, 9, 1), (4, 0, 1)], [(3, 0, 6)])
    ]


def test_exact_mode_reads_prompts_in_chunks_and_answers_one_by_one() -> None:
    rows = [(0, row(1, 2, 6, 8, 5)), (1, row(2, 9, 1, 10, 4)), (2, row(3, 0, 1, 1, 1))]
    assert spans(split_passes(rows, exact=True, most_rows=9)) == [
        ([(1, 9, 1)], [(0, 2, 3), (2, 0, 1)]),
        ([(0, 5, 1)], []),
        ([(0, 6, 1)], []),
        ([(0, 7, 1)], []),
    ]


def test_rows_beyond_what_a_pass_holds_come_in_the_next() -> None:
    rows = [(i, row(i, 4, 1, 5, 2)) for i in range(3)] + [(3, row(3, 0, 4, 4, 4))]
    assert spans(split_passes(rows, exact=False, most_rows=2)) == [
        ([(0, 4, 1), (1, 4, 1)], []),
        ([(2, 4, 1)], [(3, 0, 4)]),
    ]
