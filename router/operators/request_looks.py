"""The requests of one router, as operators list and trace them: names, counts and times, but
nothing of a prompt or an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from twolane.attempt_number import try_of
from twolane.errors import InvalidParameterError
from twolane.router.dispatch.board import Board
from twolane.router.requests.ledger import make_ledger
from twolane.router.requests.record import RequestRecord
from twolane.router.requests.request import WAITING
from twolane.router.requests.trace import trace_marks, trace_spans
from twolane.v1 import admin_pb2, cluster_pb2, sampling_pb2

PAGE = 100
MOST_A_PAGE = 1_000
MOST_OTHERS = 20
LEAST_ID_CHARS = 4  # of a submission id's beginning


class RequestLooks:
    """`clock` is the router's."""

    def __init__(self, board: Board, clock: Callable[[], float]) -> None:
        self._board = board
        self._clock = clock
        # Constant, so that the pages of a list fit together.
        self._unix_offset = time.time() - clock()

    def n_by_model(self) -> dict[str, tuple[int, int]]:
        """The numbers of waiting and of running requests of each model that has any."""
        counts: dict[str, tuple[int, int]] = {}
        for request in self._board.requests.values():
            waiting, running = counts.get(request.job.model, (0, 0))
            is_waiting = request.state in WAITING
            counts[request.job.model] = (waiting + is_waiting, running + (not is_waiting))
        return counts

    def page(self, request: admin_pb2.ListRequestsRequest) -> admin_pb2.ListRequestsResponse:
        """One page of a list, in the order of `sort_key`. Raises `InvalidParameterError`."""
        size = page_size(request.page_size)
        now = self._clock()
        board = self._board
        found = [
            record
            for record in (board.ended if request.ended else self._live())
            if _fits(record, request, now)
        ]
        statuses = [(self._key(record, request.ended), record) for record in found]
        after = page_key(request.page_token)
        rest = sorted(
            (entry for entry in statuses if after is None or entry[0] > after),
            key=lambda entry: entry[0],
        )
        page = [
            self.status(record, now, with_ledger=request.with_ledgers) for _, record in rest[:size]
        ]
        response = admin_pb2.ListRequestsResponse(requests=page, total=len(found))
        if len(rest) > size:
            response.next_page_token = page_token(page[-1], request.ended)
        return response

    def find(self, request: admin_pb2.GetRequestRequest) -> admin_pb2.GetRequestResponse:
        """The request that fits the id best, and the others that fit."""
        now = self._clock()
        found = self._named(request.id, request.tenant)
        if not found:
            return admin_pb2.GetRequestResponse()
        first, *others = found
        return admin_pb2.GetRequestResponse(
            trace=self._trace(first, now),
            others=[self.status(record, now) for record in others[:MOST_OTHERS]],
        )

    def status(
        self, record: RequestRecord, now: float, *, with_ledger: bool = False
    ) -> cluster_pb2.RequestStatus:
        end = now if record.ended is None else record.ended
        timeline = record.timeline
        return cluster_pb2.RequestStatus(
            request_id=record.request_id,
            submission_id=record.submission_id,
            state=record.state,
            attempt=try_of(record.attempt),
            prefill_worker=record.prefill_worker,
            decode_worker=record.decode_worker,
            prompt_tokens=record.n_prompt,
            output_tokens=record.n_output,
            age_s=end - record.arrived,
            priority=record.priority,
            tenant=record.tenant,
            model=record.model,
            router_id=self._board.config.router_id,
            arrived_at=self._unix_offset + record.arrived,
            ttft_s=0.0 if timeline.first_token is None else timeline.first_token - record.arrived,
            silent_s=max(0.0, end - (timeline.last_token or record.arrived)),
            finish=record.finish,
            ledger=(record.ledger or _ledger_so_far(record)) if with_ledger else None,
        )

    def _trace(self, record: RequestRecord, now: float) -> admin_pb2.RequestTrace:
        return admin_pb2.RequestTrace(
            request=self.status(record, now),
            ledger=record.ledger or _ledger_so_far(record),
            spans=trace_spans(record, now),
            marks=trace_marks(record),
            dropped_marks=record.journal.n_lost,
            error="" if record.finish in ("stop", "length") else record.finish,
            reason=record.detail,
        )

    def _live(self) -> Iterator[RequestRecord]:
        for request in self._board.requests.values():
            yield RequestRecord.of(request, self._board.members.worker_id)

    def _named(self, name: str, tenant: str) -> list[RequestRecord]:
        """The requests that fit a name: running ones first, then the youngest."""
        if not name:
            raise InvalidParameterError("id", name, "a submission id, its beginning, or a label")
        everyone: Iterable[RequestRecord] = (*self._live(), *self._board.ended)
        if tenant:
            everyone = [record for record in everyone if record.tenant == tenant]
        is_long = len(name) >= LEAST_ID_CHARS
        fits = [
            record
            for record in everyone
            if record.request_id == name or (is_long and record.submission_id.startswith(name))
        ]
        return sorted(fits, key=lambda its: (its.ended is not None, -its.arrived))

    def _key(self, record: RequestRecord, youngest_first: bool) -> tuple[float, str]:
        return _key(self._unix_offset + record.arrived, record.submission_id, youngest_first)


def page_size(wanted: int) -> int:
    """The number of requests on a page. Raises `InvalidParameterError`."""
    if not 0 <= wanted <= MOST_A_PAGE:
        raise InvalidParameterError("page_size", wanted, f"0 to {MOST_A_PAGE}")
    return wanted or PAGE


def sort_key(status: cluster_pb2.RequestStatus, youngest_first: bool) -> tuple[float, str]:
    """The key by which lists are sorted: the oldest first, or the youngest."""
    return _key(status.arrived_at, status.submission_id, youngest_first)


def page_token(last: cluster_pb2.RequestStatus, youngest_first: bool) -> str:
    """The token of the next page, after `last`."""
    at, submission_id = sort_key(last, youngest_first)
    return f"{at!r}:{submission_id}"


def page_key(token: str) -> tuple[float, str] | None:
    """The `sort_key` of the last request on the previous page; None for the first page. Raises
    `InvalidParameterError`."""
    if not token:
        return None
    at, _, submission_id = token.partition(":")
    try:
        return float(at), submission_id
    except ValueError:
        raise InvalidParameterError(
            "page_token", token[:50], "next_page_token of the page before"
        ) from None


def _key(at: float, submission_id: str, youngest_first: bool) -> tuple[float, str]:
    return (-at if youngest_first else at), submission_id


def _fits(record: RequestRecord, wanted: admin_pb2.ListRequestsRequest, now: float) -> bool:
    end = now if record.ended is None else record.ended
    workers = (record.prefill_worker, record.decode_worker)
    return (
        (not wanted.states or record.state in wanted.states)
        and (not wanted.tenant or record.tenant == wanted.tenant)
        and (not wanted.model or record.model == wanted.model)
        and (not wanted.worker_id or wanted.worker_id in workers)
        and end - record.arrived >= wanted.older_than_s
    )


def _ledger_so_far(record: RequestRecord) -> sampling_pb2.Ledger:
    return make_ledger(
        record.timeline,
        prompt_tokens=record.n_prompt,
        output_tokens=record.n_output,
        attempts=record.n_attempts,
        takeovers=record.fence,
        prefill_worker=record.prefill_worker,
        decode_worker=record.decode_worker,
    )
