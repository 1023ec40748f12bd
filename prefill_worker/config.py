"""What can be set about the prefill role."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.kvtransfer.config import SenderConfig
from twolane.prefill_worker.batching import BatchingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """`holding_cap_share` of the pool may be held for decode workers before prefills stop starting.

    It sets the sender's `holding_cap_pages` unless that is given.

    `drop_after_s`: where this worker decodes too, and others wait for its pages, a row that is held
    ungranted for longer is given up, and computed again when there is room. Where the decode worker
    has the lower epoch it is twice as long: of two that wait for each other, one gives up.
    """

    queue_limit: int = 1024  # rows that wait; more are refused
    holding_cap_share: float = 0.6
    unplaced_after_s: float = 1.0  # a row that is held ungranted for longer is reported UNPLACED
    drop_after_s: float = 4.0
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    sender: SenderConfig = field(default_factory=SenderConfig)

    def __post_init__(self) -> None:
        assert self.queue_limit >= 1
        assert 0 < self.holding_cap_share <= 1
        assert 0 <= self.unplaced_after_s < self.drop_after_s
