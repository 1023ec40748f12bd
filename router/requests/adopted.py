"""Merges what workers know about a submission: the attempt that counts, and the answer so far.

     prefill worker    attempt 1   token 0
     decode worker     attempt 1   tokens 0, 1, 2, 3        ──> attempt 2: tokens 0 to 5
     decode worker 2   attempt 2   given 0 to 3, tokens 4, 5

The highest attempt counts: it was given the tokens of all attempts before it. These are pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from twolane.rpc.columns import GOES_ON, Logprobs, tokens_of
from twolane.v1 import sampling_pb2, worker_pb2

_KIND = worker_pb2.RowEvent
_IS_DECODES = frozenset({_KIND.KIND_JOINED, _KIND.KIND_LANDED, _KIND.KIND_HANDED_OVER})


@dataclass(slots=True)
class KnownToken:
    token_id: int
    finish_reason: sampling_pb2.FinishReason = GOES_ON
    logprobs: Logprobs | None = None
    # Of the worker that reported it; unset: it was given with the attempt.
    role: worker_pb2.Role = worker_pb2.ROLE_UNSPECIFIED


@dataclass(slots=True, kw_only=True)
class KnownAttempt:
    """The attempt that counts, as its workers know it."""

    assign: worker_pb2.Assign
    number: int
    decode_epoch: int
    sides: Mapping[int, worker_pb2.AdoptedAttempt]  # by epoch of the worker
    tokens: list[KnownToken] = field(default_factory=list)  # of the answer, from index 0
    # Attempts that still run: epoch, number.
    others: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first_index(self) -> int:
        """The index of the token that its prefill worker samples."""
        return len(self.assign.token_ids) - self.assign.n_prompt

    @property
    def is_decoding(self) -> bool:
        """Whether its decode worker has the row."""
        told = any(token.role == worker_pb2.ROLE_DECODE for token in self.tokens)
        return told or any(event.kind in _IS_DECODES for event in self.events())

    @property
    def is_cancelled(self) -> bool:
        """Whether its former router had cancelled it."""
        return any(side.is_cancelled for side in self.sides.values())

    def events(self) -> Iterator[worker_pb2.RowEvent]:
        """The latest event of each side and role."""
        for side in self.sides.values():
            yield from side.events

    def has_logprobs_from(self, index: int) -> bool:
        """Whether all known tokens from `index` on have log-probabilities."""
        return all(token.logprobs is not None for token in self.tokens[index:])


def newest(answers: Mapping[int, worker_pb2.Adopted]) -> KnownAttempt | None:
    """The attempt that counts, from the answers of all workers; None if there is none."""
    everything = [(epoch, a) for epoch, answer in answers.items() for a in answer.attempts]
    if not everything:
        return None
    number = max(attempt.key.attempt for _, attempt in everything)
    sides = {epoch: a for epoch, a in everything if a.key.attempt == number}
    latest = next(iter(sides.values()))
    known = KnownAttempt(
        assign=latest.assign, number=number, decode_epoch=latest.decode.epoch, sides=sides
    )
    known.tokens = _tokens(known)
    known.others = [
        (epoch, a.key.attempt)
        for epoch, a in everything
        if a.key.attempt != number and not a.has_ended
    ]
    return known


def _tokens(known: KnownAttempt) -> list[KnownToken]:
    """The tokens before the first one that is missing, or on which two workers disagree."""
    told: dict[int, KnownToken] = {}
    disputed: set[int] = set()
    for side in known.sides.values():
        for columns in side.tokens:
            for _, index, token_id, finish_reason, logprobs in tokens_of(columns):
                before = told.get(index)
                if before is not None and before.token_id != token_id:
                    disputed.add(index)
                told[index] = KnownToken(token_id, finish_reason, logprobs, columns.role)
    given = known.assign.token_ids[known.assign.n_prompt :]
    tokens = [KnownToken(token_id) for token_id in given]
    while len(tokens) in told and len(tokens) not in disputed:
        tokens.append(told[len(tokens)])
    return tokens
