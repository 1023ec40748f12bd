"""The results of a generation: frozen values, built from protobuf messages only here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypedDict

from twolane.v1 import inference_pb2, sampling_pb2


class Message(TypedDict):
    """One turn of a chat; `role` is system, user or assistant."""

    role: str
    content: str


class FinishReason(StrEnum):
    """Why an answer ended: at a stop token or string, or at its maximum length."""

    STOP = "stop"
    LENGTH = "length"


_FINISH_REASONS = {
    sampling_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    sampling_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens at a position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer. `logprob` and `top_logprobs` are set only if `top_logprobs` was
    requested."""

    index: int
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()

    @classmethod
    def from_proto(cls, message: inference_pb2.Token) -> Token:
        return cls(
            index=message.index,
            token_id=message.token_id,
            logprob=message.logprob if message.HasField("logprob") else None,
            top_logprobs=tuple(TopLogprob(t.token_id, t.logprob) for t in message.top_logprobs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where a request's time went. Seconds, each measured by one process on its own clock."""

    queued_s: float = 0.0
    prefill_wait_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    decode_wait_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    transfer_pages: int = 0
    transfer_bytes: int = 0
    attempts: int = 0
    takeovers: int = 0  # by other routers; ttft_s and total_s are then the last router's
    prefill_worker: str = ""
    decode_worker: str = ""

    @classmethod
    def from_proto(cls, message: sampling_pb2.Ledger) -> Ledger:
        return cls(**{field.name: getattr(message, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one message adds to the answer. `text` may lag behind `tokens`: characters that may
    belong to a stop string, and incomplete characters, are held back. `finish_reason` and `ledger`
    are set on the last chunk, and only there."""

    request_id: str
    seed: int
    tokens: tuple[Token, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    ledger: Ledger | None = None

    @classmethod
    def from_proto(
        cls, message: inference_pb2.GenerateResponse, *, request_id: str, seed: int
    ) -> Chunk:
        reason = _FINISH_REASONS.get(message.finish_reason)
        return cls(
            request_id=request_id,
            seed=seed,
            tokens=tuple(Token.from_proto(token) for token in message.tokens),
            text=message.text,
            finish_reason=reason,
            ledger=Ledger.from_proto(message.ledger) if reason is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer."""

    request_id: str
    seed: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    ledger: Ledger

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the cluster serves."""

    name: str
    fingerprint: str
    max_context_tokens: int
    vocab_size: int

    @classmethod
    def from_proto(cls, message: inference_pb2.Model) -> Model:
        return cls(**{field.name: getattr(message, field.name) for field in fields(cls)})
