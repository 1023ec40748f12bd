"""Counts the KV pages of each worker, by state and by row."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.errors import InvalidParameterError
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.members.member import Member, MemberState
from twolane.router.router import Router
from twolane.v1 import admin_pb2, worker_pb2

ROWS = 20
MOST_ROWS = 1_000


class PagesOfWorkers:
    """The pages of the workers that this router knows, which are all workers."""

    def __init__(self, router: Router, workers: WorkerCalls) -> None:
        self._router = router
        self._workers = workers

    async def look(self, request: admin_pb2.GetPagesRequest) -> list[admin_pb2.WorkerPages]:
        """The pages of the requested workers. Raises `InvalidRequestError` for an unknown
        worker."""
        if not 0 <= request.rows <= MOST_ROWS:
            raise InvalidParameterError("rows", request.rows, f"0 to {MOST_ROWS}")
        members = self._members(request.worker_id)
        answers = await self._workers.inspect_all(members, worker_pb2.InspectRequest())
        pairs = zip(members, answers, strict=True)
        return [self._of(member, answer, request) for member, answer in pairs]

    def _members(self, worker_id: str) -> Sequence[Member]:
        operations = self._router.operations
        if worker_id:
            return [operations.member(worker_id)]
        here = [member for member in operations.members() if member.state is not MemberState.GONE]
        return sorted(here, key=lambda member: member.worker_id)

    def _of(
        self,
        member: Member,
        answer: worker_pb2.InspectResponse | str,
        request: admin_pb2.GetPagesRequest,
    ) -> admin_pb2.WorkerPages:
        its = admin_pb2.WorkerPages(worker=member.announce.worker, total=member.announce.n_pages)
        if isinstance(answer, str):
            its.pages.CopyFrom(member.load.pages)
            its.unreached = answer
            return its
        its.pages.CopyFrom(answer.load.pages)
        its.checked = request.check
        if request.check:
            its.integrity_error = answer.integrity_error or _off(answer.load.pages, its.total)
        most = request.rows or ROWS
        rows = sorted(answer.rows, key=lambda row: (-row.pages, row.key.submission_id))
        its.rows_left_out = max(0, len(rows) - most)
        for row in rows[:most]:
            its.rows.add(
                submission_id=row.key.submission_id,
                request_id=self._router.operations.label_of(row.key.submission_id),
                attempt=row.key.attempt,
                state=row.state,
                tokens=row.tokens,
                pages=row.pages,
            )
        return its


def _off(pages: worker_pb2.PageCounts, total: int) -> str:
    counted = pages.quarantined + pages.used + pages.pinned + pages.cached + pages.free
    return "" if counted == total else f"{counted} pages are counted, of {total}"
