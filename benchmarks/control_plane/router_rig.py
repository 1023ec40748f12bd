"""A dispatcher without gRPC and text, and scripted workers.

Half of the workers prefill, half decode. Time is `now`, which only the caller changes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from twolane.errors import CancelledError
from twolane.params import SamplingParams
from twolane.router.config import RouterConfig
from twolane.router.dispatch.affinity import prefix_hashes
from twolane.router.dispatch.dispatch import Dispatcher
from twolane.router.requests.request import Job, Request
from twolane.v1 import cluster_pb2, inference_pb2, sampling_pb2, worker_pb2

PREFILL, DECODE = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
GOES_ON = sampling_pb2.FINISH_REASON_UNSPECIFIED
PROMPT_TOKENS = 1_024
PARAMS = SamplingParams(max_tokens=64, seed=1)


class Rig:
    """See the module's docstring."""

    def __init__(self, n_workers: int, config: RouterConfig, rows: int = 4) -> None:
        self.dispatcher = Dispatcher(config)
        self.n_workers = n_workers
        self.now = 100.0
        self.rows = rows
        self._n_jobs = 0
        self._rng = random.Random(1)
        for epoch in range(1, n_workers + 1):
            self.dispatcher.announce(self.announcement(epoch), self.now)
            self.dispatcher.session_opened(epoch, self.now)
            self.report(epoch)
        self.dispatcher.board.roster.refresh()  # so that no placement pays for it
        self.settle()

    def announcement(self, epoch: int) -> cluster_pb2.AnnounceRequest:
        return cluster_pb2.AnnounceRequest(
            worker=worker_pb2.WorkerAddress(worker_id=f"worker-{epoch}", epoch=epoch, endpoint="e"),
            roles=[PREFILL if epoch % 2 else DECODE],
            model="m",
            fingerprint="f",
            n_pages=10**6,
            page_tokens=64,
            max_context_tokens=131_072,
            vocab_size=150_000,
            decode_rows=self.rows,
        )

    def hear(self, epoch: int, message: worker_pb2.SessionResponse) -> None:
        """Receive a message as it comes from the wire."""
        raw = message.SerializeToString()
        self.dispatcher.on_message(epoch, worker_pb2.SessionResponse.FromString(raw), self.now)

    def report(self, epoch: int, used: int = 0) -> None:
        pages = worker_pb2.PageCounts(used=used, free=10**6 - used)
        load = worker_pb2.LoadReport(pages=pages)  # more rows would be other routers'
        self.hear(epoch, worker_pb2.SessionResponse(load=load))

    def tell_token(
        self,
        request: Request,
        reason: sampling_pb2.FinishReason = GOES_ON,
        *,
        role: worker_pb2.Role,
    ) -> None:
        """Receive the next token, from the worker of that role."""
        attempt = request.attempt
        assert attempt is not None
        columns = worker_pb2.TokenColumns(
            role=role,
            rows=[attempt.row],
            first_indexes=[len(request.answer.tokens)],
            token_ids=[7],
        )
        if reason:
            columns.ends.add(at=0, finish_reason=reason)
        epoch = attempt.prefill_epoch if role == PREFILL else attempt.decode_epoch
        self.hear(epoch, worker_pb2.SessionResponse(tokens=[columns]))

    def tell_end(self, request: Request, *, role: worker_pb2.Role) -> None:
        """Receive the terminal event of a role, which carries its figures."""
        attempt = request.attempt
        assert attempt is not None
        kind = worker_pb2.RowEvent.KIND_FINISHED
        if role == PREFILL:
            kind = worker_pb2.RowEvent.KIND_HANDED_OVER
        figures = worker_pb2.RowFigures()
        event = worker_pb2.RowEvent(key=attempt.key, kind=kind, role=role, figures=figures)
        epoch = attempt.prefill_epoch if role == PREFILL else attempt.decode_epoch
        self.hear(epoch, worker_pb2.SessionResponse(rows=[event]))

    def job(self, n_tokens: int = PROMPT_TOKENS, time_left_s: float | None = None) -> Job:
        self._n_jobs += 1
        numbers = [self._rng.randrange(150_000) for _ in range(n_tokens)]
        return Job(
            request_id=f"{self._n_jobs:016x}",
            model="m",
            token_ids=inference_pb2.TokenIds(ids=numbers).ids,
            params=PARAMS,
            arrived=self.now,
            deadline=None if time_left_s is None else self.now + time_left_s,
        )

    def submit(self, job: Job) -> Request:
        """As intake and the doors do it."""
        job = replace(job, prefix_hashes=prefix_hashes(job.token_ids))
        request = self.dispatcher.submit(job, None, self.now)
        self.settle()
        return request

    def end(self, request: Request) -> None:
        """Cancel the request. Waiting requests are placed only by `settle`."""
        self.dispatcher.end(request.job.submission_id, CancelledError("left"), self.now)

    def settle(self) -> None:
        """As the router does once per iteration of its loop."""
        self.dispatcher.settle(self.now)
        self.dispatcher.take_outbox()
        self.dispatcher.take_news()

    def tick(self, after_s: float = 0.001) -> None:
        """As the router does, `after_s` after the last one."""
        self.now += after_s
        self.dispatcher.tick(self.now)
        self.dispatcher.take_outbox()


def mean_us(count: int, work: Callable[[int], object]) -> float:
    """Mean CPU time of `work(0)` to `work(count - 1)`."""
    start = time.process_time()
    for n in range(count):
        work(n)
    return (time.process_time() - start) / count * 1e6
