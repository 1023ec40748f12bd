"""The tokens that one role of an attempt has told, kept to be told again."""

from __future__ import annotations

from array import array

from twolane.rpc.columns import ColumnWriter, Logprobs
from twolane.v1 import sampling_pb2

GOES_ON = sampling_pb2.FINISH_REASON_UNSPECIFIED


class Told:
    """Tokens of one row from `first_index` on, without a gap. There are some 100,000 on a worker:
    four bytes each, and nothing for the garbage collector to look at."""

    __slots__ = ("finish_reason", "first_index", "logprobs", "token_ids")

    def __init__(self) -> None:
        self.first_index = 0
        self.token_ids = array("i")
        self.finish_reason = GOES_ON  # of the last one
        self.logprobs: dict[
            int, Logprobs
        ] = {}  # by place in `token_ids`, where they were asked for

    def since(self, from_index: int, into: ColumnWriter, row: int, sample: int) -> None:
        """Add the tokens from that index on."""
        first = max(0, from_index - self.first_index)
        ids = self.token_ids[first:]
        if not ids:
            return
        into.add(row, self.first_index + first, ids, sample=sample)
        n_tokens = len(self.token_ids)
        for place, logprobs in self.logprobs.items():
            if place >= first:
                into.logprobs(n_tokens - place, logprobs)
        if self.finish_reason:
            into.end(self.finish_reason)
