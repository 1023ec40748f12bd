"""Which client labels live rows hold, so that no two requests run under the same one.

    tenant, request_id --- held under one claim --- by each live attempt of that submission

A row that has ended, or was cancelled, holds no label.
"""

from __future__ import annotations

from typing import NamedTuple

from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId


class Claim(NamedTuple):
    """`nonce` is drawn for each submission: another nonce means another request."""

    tenant: str
    request_id: str
    nonce: int

    @classmethod
    def of(cls, assign: worker_pb2.Assign) -> Claim:
        return cls(assign.tenant, assign.request_id, assign.claim)


class Labels:
    """Attempts without a label (an empty request_id) are allowed, and hold nothing."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, str], dict[AttemptId, int]] = {}

    def is_held_by_other(self, claim: Claim) -> bool:
        holders = self._holders.get(claim[:2], {})
        return any(nonce != claim.nonce for nonce in holders.values())

    def holder(self, tenant: str, request_id: str) -> AttemptId | None:
        """One attempt of the request that runs under that label."""
        return next(iter(self._holders.get((tenant, request_id), ())), None)

    def hold(self, claim: Claim, attempt: AttemptId) -> None:
        if claim.request_id:
            self._holders.setdefault(claim[:2], {})[attempt] = claim.nonce

    def release(self, claim: Claim, attempt: AttemptId) -> None:
        """May be called twice."""
        holders = self._holders.get(claim[:2], {})
        if holders.pop(attempt, None) is not None and not holders:
            del self._holders[claim[:2]]

    def __len__(self) -> int:
        return len(self._holders)
