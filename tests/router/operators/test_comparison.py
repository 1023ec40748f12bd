"""When two answers are the same, with bits and with rounding."""

from __future__ import annotations

import pytest

from twolane.router.operators.comparison import (
    Answer,
    choose_reference,
    difference,
    pairs,
    prompt_lengths,
)


def answer(*tokens: int, logprob: float = -0.5, second: float = -1.0) -> Answer:
    tops = tuple({token: logprob, token + 1: second} for token in tokens)
    return Answer(tokens, (logprob,) * len(tokens), tops)


@pytest.mark.parametrize(
    ("other", "exact", "loose"),
    [
        (answer(1, 2, 3), None, None),
        (answer(1, 2, 3, logprob=-0.5000001), 0, None),
        (answer(1, 2, 3, logprob=-0.9), 0, 0),
        (answer(1, 3, 3), 1, 1),  # half a nat less likely: no rounding does that
        (answer(1, 9, 3), 1, 1),  # not among the likeliest
        (answer(1, 2), 2, 2),
    ],
)
def test_where_an_answer_differs(other: Answer, exact: int | None, loose: int | None) -> None:
    found = difference(answer(1, 2, 3), other, exact=True)
    assert (None if found is None else found.at) == exact
    found = difference(answer(1, 2, 3), other, exact=False)
    assert (None if found is None else found.at) == loose


def test_two_tokens_that_are_as_likely_part_two_answers_without_a_fault() -> None:
    reference = answer(1, 2, 3, logprob=-0.6, second=-0.61)
    other = answer(1, 3, 8, logprob=-0.6, second=-0.61)
    assert difference(reference, other, exact=False) is None
    assert difference(reference, other, exact=True) is not None


def test_the_reference_is_what_most_agree_with() -> None:
    answers = {"p0": answer(9), "d0": answer(1), "d1": answer(1)}
    assert choose_reference(answers, exact=True) == "d0"
    assert choose_reference({"p0": answer(9), "d0": answer(1)}, exact=True) == "p0"


def test_prompts_end_around_the_borders_of_pages_of_every_size() -> None:
    assert prompt_lengths(4, [16, 16], 1000) == [32, 33, 31, 40]
    assert {64, 65, 63, 32, 33, 31} <= {*prompt_lengths(8, [16, 32], 1000)}
    assert all(length <= 20 for length in prompt_lengths(9, [16], 20))
    assert prompt_lengths(2, [64], 7) == [7, 7]


def test_pairs_are_all_or_those_with_a_worker() -> None:
    assert len([*pairs(["p0", "p1"], ["d0", "d1"], [])]) == 4
    assert [*pairs(["p0", "p1"], ["d0", "d1"], ["d1"])] == [("p0", "d1"), ("p1", "d1")]
    assert [*pairs(["b0", "b1"], ["b0", "b1"], [])] == [("b0", "b1"), ("b1", "b0")]
