"""`TokenColumns`: the encoding of many rows' tokens in one message.

A writer adds tokens row by row; a reader gets them back one by one, as plain tuples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

from twolane.v1 import sampling_pb2, worker_pb2

Top = tuple[tuple[int, float], ...]  # token ids and their log-probabilities, likeliest first
Logprobs = tuple[float, Top]
# row, index in the answer, token id, finish reason (0: the answer goes on), log-probabilities
Told = tuple[int, int, int, sampling_pb2.FinishReason, Logprobs | None]
GOES_ON = sampling_pb2.FINISH_REASON_UNSPECIFIED
_FINISH_REASONS = frozenset(sampling_pb2.FinishReason.values())


class ColumnWriter:
    """Tokens waiting to be sent. For a token of sample 0 that neither ends its row nor has
    log-probabilities, the caller may append to `rows`, `first_indexes` and `token_ids` directly, to
    all three."""

    __slots__ = (
        "_counts",
        "_ends",
        "_logprobs",
        "_samples",
        "first_indexes",
        "role",
        "rows",
        "token_ids",
    )

    def __init__(self, role: worker_pb2.Role) -> None:
        self.role = role
        self._clear()

    def _clear(self) -> None:
        self.rows: list[int] = []
        self.first_indexes: list[int] = []
        self.token_ids: list[int] = []
        self._counts: dict[int, int] = {}  # by index in `rows`, if not 1
        self._samples: dict[int, int] = {}  # by index in `rows`, if not 0
        self._ends: list[tuple[int, sampling_pb2.FinishReason]] = []
        self._logprobs: list[tuple[int, Logprobs]] = []

    def add(self, row: int, first_index: int, token_ids: Sequence[int], *, sample: int = 0) -> None:
        """Add one or more consecutive tokens of a row."""
        place, n_tokens = len(self.rows), len(token_ids)
        if n_tokens != 1:
            self._counts[place] = n_tokens
        if sample:
            self._samples[place] = sample
        self.rows.append(row)
        self.first_indexes.append(first_index)
        self.token_ids += token_ids

    def end(self, finish_reason: sampling_pb2.FinishReason) -> None:
        """Mark the token that was added last as the last of its answer."""
        self._ends.append((len(self.token_ids) - 1, finish_reason))

    def logprobs(self, back: int, logprobs: Logprobs) -> None:
        """Add log-probabilities to the token added last (`back` 1), or to one further back."""
        self._logprobs.append((len(self.token_ids) - back, logprobs))

    def __len__(self) -> int:
        """The number of tokens waiting to be sent."""
        return len(self.token_ids)

    def take(self) -> worker_pb2.TokenColumns:
        """Take all waiting tokens, as one message."""
        n_rows = len(self.rows)
        columns = worker_pb2.TokenColumns(
            role=self.role,
            rows=self.rows,
            first_indexes=self.first_indexes,
            token_ids=self.token_ids,
        )
        if self._counts:
            columns.counts.extend(self._counts.get(place, 1) for place in range(n_rows))
        if self._samples:
            columns.samples.extend(self._samples.get(place, 0) for place in range(n_rows))
        for at, reason in self._ends:
            columns.ends.add(at=at, finish_reason=reason)
        for at, (logprob, top) in self._logprobs:
            ids, values = zip(*top, strict=True) if top else ((), ())
            columns.logprobs.add(at=at, logprob=logprob, top_ids=ids, top_logprobs=values)
        self._clear()
        return columns


def tokens_of(columns: worker_pb2.TokenColumns) -> Iterator[Told]:
    """Every token, in order. Raises ValueError if the columns contradict each other."""
    rows: Sequence[int] = columns.rows
    indexes: Sequence[int] = columns.first_indexes
    ids, counts = columns.token_ids, columns.counts
    n_counted = sum(counts) if counts else len(rows)
    if len(rows) != len(indexes) or n_counted != len(ids) or len(counts) not in (0, len(rows)):
        raise ValueError(f"{len(rows)} rows, {len(indexes)} indexes, {len(ids)} of {n_counted} ids")
    if counts:
        parts = list(zip(rows, indexes, counts, strict=True))
        rows = [row for row, _, count in parts for _ in range(count)]
        indexes = [first + nth for _, first, count in parts for nth in range(count)]
    return zip(rows, indexes, ids, _reasons_of(columns), _logprobs_of(columns), strict=False)


def _reasons_of(columns: worker_pb2.TokenColumns) -> Iterator[sampling_pb2.FinishReason]:
    """One for each token, or without end."""
    if not columns.ends:
        return repeat(GOES_ON)
    ends = {end.at: end.finish_reason for end in columns.ends}
    if not _FINISH_REASONS.issuperset(ends.values()):
        raise ValueError(f"finish reasons {sorted(ends.values())}")
    return map(ends.get, range(len(columns.token_ids)), repeat(GOES_ON))


def _logprobs_of(columns: worker_pb2.TokenColumns) -> Iterator[Logprobs | None]:
    """One for each token, or without end."""
    if not columns.logprobs:
        return repeat(None)
    found = {told.at: (told.logprob, _top_of(told)) for told in columns.logprobs}
    return map(found.get, range(len(columns.token_ids)))


def _top_of(told: worker_pb2.TokenLogprobs) -> Top:
    ids, values = told.top_ids, told.top_logprobs
    if len(ids) != len(values):
        raise ValueError(f"{len(ids)} likeliest tokens, {len(values)} log-probabilities of them")
    return tuple(zip(ids, values, strict=False))  # `strict` takes half a microsecond more
