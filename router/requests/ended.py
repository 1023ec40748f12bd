"""The recently ended requests, for operators who look one up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from twolane.router.requests.journal import ENDED, Mark
from twolane.router.requests.record import RequestRecord
from twolane.router.requests.request import Request


class EndedRequests:
    """The last `most` ended requests, without their prompts and answers."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()  # by submission id
        self.on_add: Callable[[RequestRecord], None] | None = None

    def __iter__(self) -> Iterator[RequestRecord]:
        """All records, the latest end first."""
        return reversed(self._records.values())

    def get(self, submission_id: str) -> RequestRecord | None:
        return self._records.get(submission_id)

    def add(self, request: Request, worker_id: Callable[[int], str], now: float) -> None:
        """Keep the record of a request that is over. `worker_id` returns a worker's id by its
        epoch."""
        moments = (mark.at for mark in request.journal)  # `now` is of the latest tick
        ended = max(now, request.job.arrived, request.timeline.last_token or 0.0, *moments)
        request.journal.note(Mark(ended, ENDED, note=request.state.name.lower()))
        self._records.pop(request.job.submission_id, None)
        record = self._records[request.job.submission_id] = RequestRecord.of(
            request, worker_id, ended
        )
        if self.on_add is not None:
            self.on_add(record)
        while len(self._records) > self._most:
            self._records.popitem(last=False)
