"""What comes to this router, and what becomes of it: what pools are sized by.

All are counts since the router began, but what waits now.
"""

from __future__ import annotations

from collections.abc import Iterable

from twolane.router.members.worker_view import WorkerView
from twolane.router.requests.request import Request
from twolane.v1 import cluster_pb2


class Traffic:
    """`ttft_s` and `gap_s` are the SLO by which answers are judged: the time to the first token,
    and the mean gap of an answer's tokens. A controller may change them at any time."""

    def __init__(self) -> None:
        self.ttft_s = 0.5
        self.gap_s = 0.020
        self._counts = cluster_pb2.Traffic()

    def arrived(self, request: Request) -> None:
        self._counts.requests += 1
        self._counts.prompt_tokens += request.n_prompt

    def placed(self, cached_tokens: int) -> None:
        """A new request has a prefill worker, which probably has so many of its tokens."""
        self._counts.cached_tokens += cached_tokens

    def answered(self, request: Request) -> None:
        """The answer is complete."""
        n_tokens, line = len(request.answer.tokens), request.timeline
        self._counts.answers += 1
        self._counts.answer_tokens += n_tokens
        if line.first_token is None or line.last_token is None:
            return
        gap_s = (line.last_token - line.first_token) / max(1, n_tokens - 1)
        is_soon = line.first_token - line.arrived <= self.ttft_s
        self._counts.held += is_soon and gap_s <= self.gap_s

    def failed(self) -> None:
        """A request has ended without an answer, by a fault or for want of workers."""
        self._counts.failed += 1

    def report(
        self,
        waiting: Iterable[Request],
        n_expecting: int,
        workers: Iterable[WorkerView],
        now: float,
    ) -> cluster_pb2.Traffic:
        """`waiting`: the queue; `n_expecting`: requests that wait for any worker of their model."""
        report = cluster_pb2.Traffic()
        report.CopyFrom(self._counts)
        queue = list(waiting)
        report.waiting = len(queue) + n_expecting
        report.waiting_tokens = sum(request.n_tokens for request in queue)
        report.oldest_wait_s = max((now - its.queued_since for its in queue), default=0.0)
        takers = [view for view in workers if view.decodes]
        report.decode_is_full = bool(takers) and not any(_has_room(view) for view in takers)
        return report


def _has_room(view: WorkerView) -> bool:
    return view.rows < view.max_rows and view.free_pages > 0
