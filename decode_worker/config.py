"""Settings of the decode role."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.kvtransfer.config import ReceiverConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """`least_growth_tokens` is reserved for a row even if its ASSIGN asks for less.

    `index_answers` also puts full pages of answers into the prefix index: correct if prefill and
    decode use the same reduction.
    """

    least_growth_tokens: int = 32
    index_answers: bool = True
    receiver: ReceiverConfig = field(default_factory=ReceiverConfig)

    def __post_init__(self) -> None:
        assert self.least_growth_tokens >= 1
