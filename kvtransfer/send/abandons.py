"""Abandon messages that are not answered yet; each is repeated for one lease."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.retry import Retry
from twolane.v1 import transfer_pb2


@dataclass(slots=True)
class _Unanswered:
    message: transfer_pb2.Abandon
    retry: Retry
    until: float


class UnansweredAbandons:
    """The receiver answers an Abandon with Refused. Losing all of them is safe: its lease ends."""

    def __init__(self, lease: LeaseConfig) -> None:
        self._lease = lease
        self._of: dict[Key, _Unanswered] = {}

    def add(self, key: Key, generation: int, reason: str, now: float) -> None:
        """`due` returns it at once, then with growing pauses."""
        message = transfer_pb2.Abandon(key=key.proto(), generation=generation, reason=reason)
        retry = Retry(self._lease, now)
        self._of[key] = _Unanswered(message, retry, now + self._lease.lease_s)

    def answered(self, key: Key) -> None:
        self._of.pop(key, None)

    def has(self, epoch: int) -> bool:
        return any(key.receiver_epoch == epoch for key in self._of)

    def hurry(self, epoch: int, now: float) -> None:
        """The link is back: all messages to that receiver are due now."""
        for key, unanswered in self._of.items():
            if key.receiver_epoch == epoch:
                unanswered.retry = Retry(self._lease, now)

    def due(self, now: float) -> list[tuple[int, transfer_pb2.Abandon]]:
        """Messages to send now, by receiver epoch. Forgets those whose lease is over."""
        self._of = {
            key: unanswered for key, unanswered in self._of.items() if now < unanswered.until
        }
        return [
            (key.receiver_epoch, unanswered.message)
            for key, unanswered in self._of.items()
            if unanswered.retry.is_due(now)
        ]
