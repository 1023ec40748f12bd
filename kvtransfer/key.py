"""The name of one try to move one request's pages, hashable; `Key.of` and `.proto()` convert."""

from __future__ import annotations

from typing import NamedTuple

from twolane.v1 import transfer_pb2


class Key(NamedTuple):
    """Submission, attempt, incarnations of both workers. Never used for a second transfer."""

    submission_id: str
    attempt: int
    sender_epoch: int
    receiver_epoch: int

    @classmethod
    def of(cls, key: transfer_pb2.TransferKey) -> Key:
        return cls(key.submission_id, key.attempt, key.sender_epoch, key.receiver_epoch)

    def proto(self) -> transfer_pb2.TransferKey:
        return transfer_pb2.TransferKey(
            submission_id=self.submission_id,
            attempt=self.attempt,
            sender_epoch=self.sender_epoch,
            receiver_epoch=self.receiver_epoch,
        )

    def ticket(self, generation: int) -> transfer_pb2.Ticket:
        return transfer_pb2.Ticket(key=self.proto(), generation=generation)
