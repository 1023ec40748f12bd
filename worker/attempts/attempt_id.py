"""One try at a request, as a dictionary key."""

from __future__ import annotations

from typing import NamedTuple

from twolane.v1 import worker_pb2


class AttemptId(NamedTuple):
    """`AttemptKey` in hashable form. A higher number is a later try at the same request."""

    submission_id: str
    number: int

    @classmethod
    def of(cls, key: worker_pb2.AttemptKey) -> AttemptId:
        return cls(key.submission_id, key.attempt)

    @property
    def key(self) -> worker_pb2.AttemptKey:
        return worker_pb2.AttemptKey(submission_id=self.submission_id, attempt=self.number)

    def __str__(self) -> str:
        return f"{self.submission_id}/{self.number}"
