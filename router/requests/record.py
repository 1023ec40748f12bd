"""What may be shown of a request, running or over: names, counts and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from twolane.router.requests.journal import Journal
from twolane.router.requests.ledger import Timeline
from twolane.router.requests.request import Request
from twolane.router.requests.trace_context import TraceContext
from twolane.v1 import sampling_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request at one moment; `timeline` and `journal` are the request's own objects, which still
    change."""

    submission_id: str
    request_id: str
    tenant: str
    model: str
    priority: int
    fence: int
    state: str
    arrived: float
    ended: float | None  # None: it is not over
    n_prompt: int
    n_output: int
    n_attempts: int
    prefill_worker: str  # of the latest attempt
    decode_worker: str
    attempt: int  # its number, with the fence; 0: none
    finish: str  # why it ended, in one word; empty while it runs
    detail: str  # the stable reason of an error
    timeline: Timeline
    journal: Journal
    ledger: sampling_pb2.Ledger | None
    trace: TraceContext | None

    @classmethod
    def of(
        cls, request: Request, worker_id: Callable[[int], str], ended: float | None = None
    ) -> Self:
        """The record of a request. `worker_id` returns a worker's id by its epoch."""
        job, attempt = request.job, request.last_attempt
        return cls(
            submission_id=job.submission_id,
            request_id=job.request_id,
            tenant=job.tenant,
            model=job.model,
            priority=job.priority,
            fence=job.fence,
            state=request.state.name.lower(),
            arrived=job.arrived,
            ended=ended,
            n_prompt=request.n_prompt,
            n_output=len(request.answer.tokens),
            n_attempts=request.n_attempts,
            prefill_worker=worker_id(attempt.prefill_epoch) if attempt else "",
            decode_worker=worker_id(attempt.decode_epoch) if attempt else "",
            attempt=attempt.key.attempt if attempt else 0,
            finish=_finish(request),
            detail=request.error.metadata.get("reason", "") if request.error else "",
            timeline=request.timeline,
            journal=request.journal,
            ledger=request.ledger,
            trace=job.trace,
        )


def _finish(request: Request) -> str:
    """`length`, `stop` or the error's reason; never its message, which may quote the client."""
    if request.error is not None:
        return request.error.reason.lower()
    if not request.finish_reason:
        return ""
    name = sampling_pb2.FinishReason.Name(request.finish_reason)
    return name.removeprefix("FINISH_REASON_").lower()
