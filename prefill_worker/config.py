"""Settings of the prefill role."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.kvtransfer.config import SenderConfig
from twolane.prefill_worker.batching import BatchingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """At most `holding_cap_share` of the pool is held for decode workers; above that, no new
    prefill starts. It sets the sender's `holding_cap_pages`, unless that is set explicitly.

    `drop_after_s`: if this worker also decodes and other rows wait for its pages, a row that is
    held without a grant for longer is dropped, and computed again when there is room. The time is
    doubled if the decode worker has the lower epoch, so that of two workers waiting for each other
    only one drops.
    """

    queue_limit: int = 1024  # waiting rows; beyond that, rows are refused
    holding_cap_share: float = 0.6
    unplaced_after_s: float = 1.0  # a row held without a grant for longer is reported UNPLACED
    drop_after_s: float = 4.0
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    sender: SenderConfig = field(default_factory=SenderConfig)

    def __post_init__(self) -> None:
        assert self.queue_limit >= 1
        assert 0 < self.holding_cap_share <= 1
        assert 0 <= self.unplaced_after_s < self.drop_after_s
