"""One try at a request, as a dictionary key."""

from __future__ import annotations

from typing import NamedTuple

from twolane.v1 import worker_pb2


class AttemptId(NamedTuple):
    """`AttemptKey` in hashable form. Attempts of a request are numbered 1, 2, …"""

    request_id: str
    number: int

    @classmethod
    def of(cls, key: worker_pb2.AttemptKey) -> AttemptId:
        return cls(key.request_id, key.attempt)

    @property
    def key(self) -> worker_pb2.AttemptKey:
        return worker_pb2.AttemptKey(request_id=self.request_id, attempt=self.number)

    def __str__(self) -> str:
        return f"{self.request_id}/{self.number}"
