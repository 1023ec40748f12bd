"""Tokens of many rows in columns: what is read is what was written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.rpc.columns import GOES_ON, ColumnWriter, Logprobs, Told, tokens_of
from twolane.v1 import sampling_pb2, worker_pb2

D = worker_pb2.ROLE_DECODE
STOP, LENGTH = sampling_pb2.FINISH_REASON_STOP, sampling_pb2.FINISH_REASON_LENGTH
IDS = st.integers(0, 2**31 - 1)
LOGPROBS = st.none() | st.tuples(
    st.floats(-50, 0), st.lists(st.tuples(IDS, st.floats(-50, 0)), max_size=3).map(tuple)
)
TOKENS = st.tuples(IDS, st.sampled_from([GOES_ON, GOES_ON, STOP, LENGTH]), LOGPROBS)
RUNS = st.lists(
    st.tuples(
        st.integers(1, 2**64 - 1), st.integers(0, 2**20), st.lists(TOKENS, min_size=1, max_size=4)
    ),
    max_size=6,
)


Run = tuple[int, int, list[tuple[int, sampling_pb2.FinishReason, Logprobs | None]]]


def written(runs: list[Run]) -> worker_pb2.TokenColumns:
    writer = ColumnWriter(D)
    for row, first_index, tokens in runs:
        writer.add(row, first_index, [token_id for token_id, _, _ in tokens])
        for nth, (_, _, logprobs) in enumerate(tokens):
            if logprobs is not None:
                writer.logprobs(len(tokens) - nth, logprobs)
        if tokens[-1][1]:
            writer.end(tokens[-1][1])
    assert len(writer) == sum(len(tokens) for _, _, tokens in runs)
    columns = writer.take()
    assert len(writer) == 0
    return worker_pb2.TokenColumns.FromString(columns.SerializeToString())


@given(RUNS)
def test_tokens_come_back_one_by_one_as_they_were_added(
    runs: list[Run],
) -> None:
    expected: list[Told] = []
    for row, first_index, tokens in runs:
        for nth, (token_id, reason, logprobs) in enumerate(tokens):
            is_last = nth == len(tokens) - 1
            told_reason = reason if is_last else GOES_ON
            expected.append((row, first_index + nth, token_id, told_reason, logprobs))
    assert list(tokens_of(written(runs))) == expected


def test_columns_that_say_nothing_are_left_out() -> None:
    columns = written([(7, 12, [(5, GOES_ON, None)]), (9, 3, [(6, GOES_ON, None)])])
    assert {field.name for field, _ in columns.ListFields()} == {
        "role",
        "rows",
        "first_indexes",
        "token_ids",
    }


def test_several_tokens_of_a_row_are_one_entry_with_a_count() -> None:
    one = (5, GOES_ON, None)
    columns = written([(7, 12, [one]), (9, 3, [one, one, one])])
    assert (list(columns.rows), list(columns.counts)) == ([7, 9], [1, 3])


def test_samples_are_told_where_there_are_several() -> None:
    writer = ColumnWriter(D)
    writer.add(7, 0, [1])
    writer.add(8, 0, [1], sample=2)
    assert list(writer.take().samples) == [0, 2]


def test_a_token_costs_a_few_bytes() -> None:
    writer = ColumnWriter(D)
    for row in range(128):
        writer.add(1_000 + row, 200, [100_000 + row])
    assert len(writer.take().SerializeToString()) <= 128 * 7 + 20


def drop_row(columns: worker_pb2.TokenColumns) -> None:
    del columns.rows[-1]


def drop_index(columns: worker_pb2.TokenColumns) -> None:
    del columns.first_indexes[-1]


def drop_token(columns: worker_pb2.TokenColumns) -> None:
    del columns.token_ids[-1]


def drop_count(columns: worker_pb2.TokenColumns) -> None:
    del columns.counts[0]


def drop_logprob(columns: worker_pb2.TokenColumns) -> None:
    del columns.logprobs[0].top_logprobs[-1]


def end_for_no_known_reason(columns: worker_pb2.TokenColumns) -> None:
    columns.ends.add(at=0).MergeFromString(b"\x10\x4d")  # 77, as a later version may say


@pytest.mark.parametrize(
    "spoil",
    [drop_row, drop_index, drop_token, drop_count, drop_logprob, end_for_no_known_reason],
)
def test_columns_that_do_not_fit_together_are_refused(
    spoil: Callable[[worker_pb2.TokenColumns], None],
) -> None:
    one = (5, GOES_ON, (-0.5, ((5, -0.5),)))
    columns = written([(7, 12, [one]), (9, 3, [one, one])])
    spoil(columns)
    with pytest.raises(ValueError, match=r"\d|argument"):
        list(tokens_of(columns))
