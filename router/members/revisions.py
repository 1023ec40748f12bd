"""Which revision of the model a request may go to, while workers have two.

An answer that has begun goes on with the revision that has begun it, as long as a pair of workers
has it. Of new requests, no more than the canary's share goes to a revision that is on trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from twolane.router.members.worker_view import WorkerView
from twolane.v1 import cluster_pb2

_ALL = 1 << 64


class Revisions:
    """Of one router, as a controller told last. `number` grows whenever that changes."""

    def __init__(self) -> None:
        self.number = 0
        self._settled: frozenset[str] = frozenset()  # fingerprints; empty: none is on trial
        self._share = 0.0

    def tell(self, rollout: cluster_pb2.RolloutStatus) -> None:
        """What a controller tells; an empty message where there was no rollout."""
        told = frozenset(rollout.settled), rollout.canary_share
        if told != (self._settled, self._share):
            self._settled, self._share = told
            self.number += 1

    def groups(
        self, submission_id: str, begun: str, views: Sequence[WorkerView]
    ) -> list[list[WorkerView]]:
        """The workers to choose from, then those to choose from if the first have no room. `begun`:
        the fingerprint of the workers that have told tokens of it; empty: none has."""
        everybody = [list(views)]
        if begun:  # guard: begun revision
            same = [view for view in views if view.fingerprint == begun]
            return [same] if _serves(same) else everybody
        settled = [view for view in views if view.fingerprint in self._settled]
        if not _serves(settled):
            return everybody
        trial = [view for view in views if view.fingerprint not in self._settled]
        return [trial, settled] if self._is_tried_with(submission_id) else [settled]

    def _is_tried_with(self, submission_id: str) -> bool:
        drawn = int.from_bytes(blake2b(submission_id.encode(), digest_size=8).digest())
        return drawn < self._share * _ALL


def _serves(views: Sequence[WorkerView]) -> bool:
    return any(view.prefills for view in views) and any(view.decodes for view in views)
