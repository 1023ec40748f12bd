"""A row of a scripted worker, and the function that gives every scripted worker its next token."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from twolane.rpc.columns import GOES_ON, ColumnWriter
from twolane.testing.heard import HeardToken
from twolane.v1 import sampling_pb2, worker_pb2

VOCAB = 1000
EOS = 0


def next_token(tokens: Sequence[int]) -> int:
    """The token after `tokens`: a hash of all of them, so that every mistake shows. Never `EOS`."""
    return 1 + zlib.crc32(array("I", tokens).tobytes()) % (VOCAB - 1)


def expected_answer(prompt: Sequence[int], n_tokens: int) -> list[int]:
    """The answer that a cluster of scripted workers must give."""
    tokens = list(prompt)
    for _ in range(n_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def columns_of(tokens: Sequence[HeardToken]) -> list[worker_pb2.TokenColumns]:
    """The tokens as a worker sends them: those of its prefill role first."""
    columns = []
    for role in (worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE):
        writer = ColumnWriter(role)
        for token in tokens:
            if token.role == role:
                writer.add(token.row, token.index, [token.token_id])
                if token.finish_reason:
                    writer.end(token.finish_reason)
        if len(writer):
            columns.append(writer.take())
    return columns


@dataclass(slots=True)
class ScriptedRow:
    """One side of one attempt on a scripted worker."""

    assign: worker_pb2.Assign
    tokens: list[int]  # prompt and answer so far
    log: list[HeardToken] = field(default_factory=list)
    news: worker_pb2.RowEvent | None = None
    phase: str = "waiting"  # waiting, prefill, holding, decode, ended

    @property
    def key(self) -> tuple[str, int]:
        return self.assign.key.submission_id, self.assign.key.attempt

    @property
    def index(self) -> int:
        """The index of the next token in the answer."""
        return len(self.tokens) - self.assign.n_prompt

    def is_role(self, role: int) -> bool:
        return role in self.assign.roles

    def append(self, token: int, role: worker_pb2.Role) -> HeardToken:
        """Append the next token of the answer, with a finish reason if it is the last."""
        finish_reason = GOES_ON
        if self.index + 1 >= self.assign.sampling.max_tokens:
            finish_reason = sampling_pb2.FINISH_REASON_LENGTH
        if token in self.assign.sampling.stop_token_ids:
            finish_reason = sampling_pb2.FINISH_REASON_STOP
        self.log.append(self.token_at(self.index, token, role, finish_reason))
        self.tokens.append(token)
        return self.log[-1]

    def token_at(
        self,
        index: int,
        token: int,
        role: worker_pb2.Role,
        finish_reason: sampling_pb2.FinishReason = GOES_ON,
    ) -> HeardToken:
        return HeardToken(role, self.assign.row, index, token, finish_reason)

    def row_event(
        self,
        kind: worker_pb2.RowEvent.Kind,
        role: worker_pb2.Role,
        reason: str = "",
        *,
        attempt: int | None = None,
    ) -> worker_pb2.RowEvent:
        key = worker_pb2.AttemptKey(
            submission_id=self.assign.key.submission_id, attempt=attempt or self.assign.key.attempt
        )
        self.news = worker_pb2.RowEvent(key=key, kind=kind, reason=reason, message=reason)
        self.news.role = role
        self.news.figures.CopyFrom(_figures(role))
        return self.news


def _figures(role: int) -> worker_pb2.RowFigures:
    if role == worker_pb2.ROLE_PREFILL:
        return worker_pb2.RowFigures(prefill_s=0.25, transfer_s=0.125, transfer_pages=2)
    return worker_pb2.RowFigures(decode_s=0.5)
