"""Which worker may speak of an attempt, and under which of its numbers."""

from __future__ import annotations

import pytest

from twolane.router.dispatch.events import ends_attempt
from twolane.router.requests.attempt import Attempt, AttemptState
from twolane.v1 import worker_pb2

S = AttemptState
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


def test_worker_that_the_attempt_was_not_placed_on_does_not_speak_of_it() -> None:
    stranger = 33
    for role in (PREFILL, DECODE, worker_pb2.ROLE_UNSPECIFIED):
        assert make(2).role_of(number(2), stranger, role) is None
    assert make(2).role_of(number(2), P, DECODE) is None
    assert make(2).role_of(number(2), D, PREFILL) is None


FINISHED, GONE = worker_pb2.RowEvent.KIND_FINISHED, worker_pb2.RowEvent.KIND_GONE


@pytest.mark.parametrize(
    ("state", "role", "kind", "ends"),
    [
        (S.PLACED, PREFILL, FINISHED, True),
        (S.MOVING, PREFILL, GONE, True),
        (S.JUDGING, PREFILL, GONE, False),  # its word does not count any more
        (S.PLACED, DECODE, FINISHED, False),  # the end that the prefill worker's token tells of
        (S.PLACED, DECODE, GONE, True),  # it will never join
        (S.JUDGING, DECODE, FINISHED, False),
        (S.JUDGING, DECODE, GONE, True),
        (S.DECODING, DECODE, FINISHED, True),
        (S.DECODING, DECODE, GONE, True),
    ],
)
def test_row_that_is_no_more_ends_its_attempt_by_the_word_of_its_owner(
    state: AttemptState, role: int, kind: worker_pb2.RowEvent.Kind, ends: bool
) -> None:
    attempt = make(2, moved_from=make(1) if state is S.MOVING else None)
    if state is not attempt.state:
        attempt.life.advance(state)
    assert ends_attempt(attempt, role, worker_pb2.RowEvent(kind=kind)) is ends
