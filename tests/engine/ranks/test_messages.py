"""Steps and results survive their way to the ranks and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.engine.ranks.messages import (
    PartOfTokens,
    StepReader,
    StepWriter,
    decode_results,
    digest,
    encode_digest,
    encode_results,
    read_head,
)
from twolane.engine.step import Page, RowResult, RowWork, SampledToken
from twolane.params import SamplingParams

TOKENS = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=30)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.1, 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    min_tokens=st.integers(0, 3),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-3, 3), max_size=3),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=2),
    stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=2),
    top_logprobs=st.none() | st.integers(0, 3),
)


@st.composite
def rows(draw: st.DrawFn) -> RowWork:
    tokens, follows = draw(TOKENS), draw(st.booleans())
    n_tokens = len(tokens) + follows
    start = len(tokens) if follows else draw(st.integers(0, len(tokens) - 1))
    n_new = draw(st.integers(1, n_tokens - start))
    return RowWork(
        draw(st.integers(0, 2**40)), tokens, start, n_new,
        [Page(page) for page in draw(st.lists(st.integers(0, 2**40), max_size=9))],
        draw(st.integers(1, len(tokens))), draw(PARAMS),
        start + n_new == n_tokens and draw(st.booleans()), draw(st.integers(0, 3)), follows=follows,
    )  # fmt: skip


def seen(work: RowWork) -> dict[str, Any]:
    """What an engine reads of a row."""
    end = min(work.start + work.n_new, work.n_known)
    params = work.params
    sees_all = work.sample and (
        params.logit_bias
        or params.repetition_penalty != 1
        or work.n_tokens - work.n_prompt < params.min_tokens
    )
    return {
        "computed": list(work.token_ids[work.start : end]),
        "all": list(work.token_ids) if sees_all else None,
        "n_known": work.n_known,
        **{name: getattr(work, name) for name in work.__slots__ if name != "token_ids"},
    }


@given(st.lists(st.lists(rows(), min_size=1, max_size=5), max_size=3))
def test_steps_arrive_as_they_were_sent(steps: list[list[RowWork]]) -> None:
    writer, reader = StepWriter(), StepReader()
    for number, work in enumerate(steps):
        found, arrived = reader.decode(writer.encode(number, work))
        assert found == number
        assert [seen(row) for row in arrived] == [seen(row) for row in work]


def test_numbers_of_numpy_travel_too() -> None:
    params = SamplingParams(seed=np.int64(5), temperature=np.float32(0.5))  # type: ignore[arg-type]
    row = RowWork(1, np.arange(4), 0, 4, [Page(0)], 4, params, True)  # type: ignore[arg-type]
    _, (arrived,) = StepReader().decode(StepWriter().encode(1, [row]))
    assert (arrived.params.seed, arrived.params.temperature) == (5, 0.5)
    assert list(arrived.token_ids) == [0, 1, 2, 3]


def test_a_long_rows_tokens_do_not_travel_with_every_step() -> None:
    row = RowWork(1, range(10_000), 9_999, 1, [Page(0)], 9, SamplingParams(), True)
    assert len(StepWriter().encode(1, [row])) < 1000


def test_tokens_that_did_not_travel_are_not_made_up() -> None:
    tokens = PartOfTokens(4, [7, 8, 9], 7)
    assert (len(tokens), tokens[5], tokens[4:7], tokens[6:2]) == (7, 8, [7, 8, 9], [])
    for wrong in (3, slice(3, 5), slice(0, 7)):
        with pytest.raises(AssertionError, match="was not sent"):
            tokens[wrong]


SAMPLED = st.builds(
    SampledToken,
    st.integers(0, 2**31),
    st.none() | st.floats(-99, 0),
    st.lists(st.tuples(st.integers(0, 9), st.floats(-99, 0)), max_size=3).map(tuple),
).map(lambda t: t if t.logprob is not None else SampledToken(t.token))
RESULTS = st.lists(
    st.builds(RowResult, st.integers(0, 2**40), st.lists(SAMPLED, max_size=3).map(tuple), st.text())
)


@given(RESULTS)
def test_results_arrive_as_they_were_sent(results: list[RowResult]) -> None:
    body = encode_results(9, results)
    assert decode_results(body) == results
    assert read_head(body) == read_head(encode_digest(9, results)) == (9, digest(results))


def test_digests_see_tokens_and_errors() -> None:
    base = RowResult(1, (SampledToken(5),))
    others = [RowResult(1, (SampledToken(6),)), RowResult(1), RowResult(2, base.tokens)]
    others.append(RowResult(1, base.tokens, "x"))
    assert len({digest([result]) for result in [base, *others]}) == 5
