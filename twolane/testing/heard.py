"""Splits a worker's messages into single tokens, for tests and test doubles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twolane.rpc.columns import GOES_ON, Logprobs, tokens_of
from twolane.v1 import sampling_pb2, worker_pb2


@dataclass(frozen=True, slots=True)
class HeardToken:
    """One token, and the role of the sender."""

    role: worker_pb2.Role
    row: int
    index: int
    token_id: int
    finish_reason: sampling_pb2.FinishReason = GOES_ON
    logprobs: Logprobs | None = None


def heard(messages: Iterable[worker_pb2.TokenColumns]) -> list[HeardToken]:
    """The tokens in the order in which they were sent."""
    return [
        HeardToken(columns.role, row, index, token_id, finish_reason, logprobs)
        for columns in messages
        for row, index, token_id, finish_reason, logprobs in tokens_of(columns)
    ]
