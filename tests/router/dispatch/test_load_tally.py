"""Prompts that are computed on a worker which decodes too take pages from its rows."""

from __future__ import annotations

from twolane.router.dispatch.load_tally import Tally
from twolane.router.requests.attempt import Attempt
from twolane.v1 import worker_pb2

P, D = 11, 22


def attempt(prefill_pages: int) -> Attempt:
    return Attempt(
        worker_pb2.AttemptKey(attempt=1),
        row=1,
        prefill_epoch=P,
        decode_epoch=D,
        n_tokens=100,
        first_index=0,
        growth_tokens=28,
        page_tokens=16,
        now=0.0,
        prefill_pages=prefill_pages,
    )


def test_prompt_counts_where_it_is_computed_until_its_decode_worker_has_it() -> None:
    tally, held = Tally(), attempt(prefill_pages=7)
    tally.add(held)
    assert (tally.of(P).pages, tally.of(D).pages) == (7, 8)
    tally.handed_over(held)
    tally.handed_over(held)
    assert (tally.of(P).pages, tally.of(D).pages) == (0, 8)
    tally.check_integrity([held])
    tally.remove(held)
    assert (tally.of(P).pages, tally.of(D).pages) == (0, 0)


def test_attempt_that_ends_before_it_is_handed_over_counts_no_more() -> None:
    tally, held = Tally(), attempt(prefill_pages=7)
    tally.add(held)
    tally.check_integrity([held])
    tally.remove(held)
    assert tally.of(P).pages == 0
    tally.check_integrity([])
