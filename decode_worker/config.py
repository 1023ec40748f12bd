"""What can be set about the decode role."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.kvtransfer.config import ReceiverConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """`least_growth_tokens` is reserved for a row that ASSIGN asks nothing for.

    `index_answers` lets full pages of answers into the prefix index too: right wherever prefill
    and decode share one reduction.
    """

    least_growth_tokens: int = 32
    index_answers: bool = True
    receiver: ReceiverConfig = field(default_factory=ReceiverConfig)

    def __post_init__(self) -> None:
        assert self.least_growth_tokens >= 1
