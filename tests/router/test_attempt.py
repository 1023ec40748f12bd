"""Which worker may speak of an attempt, and under which of its numbers."""

from __future__ import annotations

from router.attempt import Attempt
from twolane.v1 import worker_pb2

P, D = 11, 22
PREFILL, DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE


def number(attempt: int) -> worker_pb2.AttemptKey:
    return worker_pb2.AttemptKey(attempt=attempt)


def make(attempt: int, moved_from: Attempt | None = None) -> Attempt:
    return Attempt(
        number(attempt),
        row=100 + attempt,
        prefill_epoch=P,
        decode_epoch=D,
        n_tokens=10,
        first_index=0,
        growth_tokens=5,
        page_tokens=16,
        now=0.0,
        moved_from=moved_from,
    )


def test_decode_worker_does_not_speak_of_the_attempt_under_an_earlier_number() -> None:
    second = make(2)
    assert second.role_of(number(2), D, DECODE) == DECODE
    assert second.role_of(number(1), D, DECODE) is None, "late news of a row that was given up"
    assert second.role_of(number(1), D, worker_pb2.ROLE_UNSPECIFIED) is None


def test_prefill_worker_speaks_of_a_moved_row_under_the_number_that_it_knows_it_by() -> None:
    moved = make(2, moved_from=make(1))
    assert moved.role_of(number(1), P, PREFILL) == PREFILL
    assert moved.role_of(number(1), D, DECODE) is None
    assert make(2).role_of(number(1), P, PREFILL) is None


def test_tokens_are_told_by_the_worker_that_has_the_row_and_under_its_number() -> None:
    moved = make(2, moved_from=make(1))
    assert moved.rows == (101, 102)
    assert moved.may_tell(101, P, PREFILL)
    assert moved.may_tell(102, P, PREFILL)
    assert moved.may_tell(102, D, DECODE)
    assert not moved.may_tell(101, D, DECODE), "the worker that it was moved away from"
    assert not moved.may_tell(102, D, PREFILL)
    assert not moved.may_tell(102, P, DECODE)
    assert not moved.may_tell(102, P, worker_pb2.ROLE_UNSPECIFIED)
