"""Attempts are numbered within a fence, and a higher fence comes after all of a lower one."""

from __future__ import annotations

import pytest

from twolane.attempt_number import MOST_TRIES, fence_of, first_attempt, next_attempt, try_of


def test_first_attempt_of_a_request_is_number_one() -> None:
    assert first_attempt(fence=0) == 1
    assert next_attempt(1, fence=0) == 2


@pytest.mark.parametrize("fence", [0, 1, 2, 65_535])
def test_number_tells_its_fence_and_its_try(fence: int) -> None:
    number = first_attempt(fence)
    assert (fence_of(number), try_of(number)) == (fence, 1)
    following = next_attempt(number, fence)
    assert (fence_of(following), try_of(following)) == (fence, 2)


def test_number_spaces_of_two_fences_never_meet() -> None:
    last_of_first = first_attempt(0) + MOST_TRIES - 1
    assert last_of_first < first_attempt(1)
    with pytest.raises(AssertionError):
        next_attempt(last_of_first, fence=0)


def test_router_that_took_a_request_over_names_its_tries_above_all_that_came_before() -> None:
    assert next_attempt(7, fence=2) == first_attempt(2)
    with pytest.raises(AssertionError):
        next_attempt(first_attempt(2), fence=1)
