"""An answer of this engine alone: what the cluster's answers are compared with.

One row reads the prompt and writes the answer, as in a colocated worker, whatever the worker's
roles are. No page comes from the prefix index or from another worker, none is published or sent,
so a wrong page elsewhere cannot touch it.

It costs the serving nothing while there is none: it is in the step loop for as long as it
runs. Then it is last in each step and takes what the roles leave: pages that no row is promised,
and a place in the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from twolane.engine.step import RowResult, RowWork, SampledToken
from twolane.errors import InternalError, InvalidParameterError, InvalidRequestError
from twolane.rpc.params import params_from_proto
from twolane.v1 import facts_pb2, worker_pb2
from twolane.worker.assign_check import check_assign
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.context import WorkerContext
from twolane.worker.errors import RowRefusedError
from twolane.worker.finish import GOES_ON
from twolane.worker.rows import Row, RowState

MOST_TOKENS = 8_192  # of prompt and answer
_NAME = "check"  # no router's submission: those are 32 hexadecimal digits


class Alone:
    """Implements `twolane.worker.role.Role` for one row, which no router knows.

    `answer` gets the tokens, or the `InternalError` of the engine. Raises `InvalidRequestError` for
    what this engine cannot answer.
    """

    def __init__(
        self, request: facts_pb2.AnswerAloneRequest, context: WorkerContext, now: float
    ) -> None:
        self._context = context
        self._row = _row(request, context, now)
        self._tokens: list[SampledToken] = []
        self.answer: asyncio.Future[list[SampledToken]] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """Return its pages. Called between two steps; may be called twice."""
        row = self._row
        if row.state is not RowState.OVER:
            row.advance(RowState.OVER)
            self._context.reserve.forget(row)
            self._context.returns.give_back(row.pages)
            row.pages = []
        if not self.answer.done():
            self.answer.cancel()

    # -- as a role --------------------------------------------------------------------------

    def accept(self, row: Row, now: float) -> None:
        raise AssertionError("it has its row from the beginning")

    def cancel(self, attempt: AttemptId, now: float) -> bool:
        return False

    def tick(self, now: float) -> None:
        """No event concerns it."""

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        row = self._row
        if row.n_ahead or row.state is RowState.OVER:
            return []
        if row.state is RowState.WAITING and not self._try_start(now):
            return []
        n_new = min(n_tokens, row.n_uncomputed)
        if not n_new:
            return []
        work = row.work(n_new)
        row.n_ahead = n_new
        return [work]

    def apply(self, results: Mapping[int, RowResult], now: float) -> None:
        row, result = self._row, results.get(self._row.number)
        if result is None:
            return
        n_new, row.n_ahead = row.n_ahead, 0
        if row.state is RowState.OVER:
            return
        if self.answer.done():  # its caller left during this step
            self.stop()
            return
        if result.error:
            self.answer.set_exception(InternalError(f"the engine: {result.error}"))
            self.stop()
            return
        if row.state is RowState.COMPUTING:
            row.n_computed += n_new
            if row.n_uncomputed:
                return
            finish = row.append(result.tokens[0].token)
            self._tokens.append(result.tokens[0])
            if finish == GOES_ON:
                row.advance(RowState.RUNNING)
        else:
            finish = GOES_ON
            for sampled in result.tokens:
                finish = row.take(sampled.token)
                self._tokens.append(sampled)
                if finish:
                    break
        if finish != GOES_ON:
            self.answer.set_result(self._tokens)
            self.stop()

    @property
    def wake_at_s(self) -> float | None:
        return None  # it is in every step; while it waits for pages, the worker's beat looks again

    @property
    def rows(self) -> Sequence[Row]:
        return [] if self._row.state is RowState.OVER else [self._row]

    def report(self, load: worker_pb2.LoadReport, now: float) -> None:
        """Routers see its pages, and nothing else of it."""

    # -- inside -----------------------------------------------------------------------------

    def _try_start(self, now: float) -> bool:
        """Take every page that the answer may need, and a place in the batch."""
        row, reserve = self._row, self._context.reserve
        if len(reserve.holders) >= self._context.limits.decode_rows:
            return False
        pages = reserve.try_take_new(row.pages_for(row.n_input + row.n_left))
        if pages is None:
            return False
        row.pages = pages
        reserve.promise(row, 0)
        row.times.started_s = now
        row.advance(RowState.COMPUTING)
        return True


def _row(request: facts_pb2.AnswerAloneRequest, context: WorkerContext, now: float) -> Row:
    spec = context.spec
    if not request.sampling.max_tokens:
        raise InvalidParameterError("sampling.max_tokens", 0, "at least 1")
    n_tokens = len(request.token_ids) + request.sampling.max_tokens
    most = min(MOST_TOKENS, spec.n_pages * spec.page_tokens, spec.max_context_tokens)
    if n_tokens > most:
        raise InvalidParameterError("len(token_ids) + max_tokens", n_tokens, f"at most {most}")
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=_NAME, attempt=1),
        roles=[worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE],
        token_ids=request.token_ids,
        n_prompt=len(request.token_ids),
        sampling=request.sampling,
        row=1,
    )
    try:
        check_assign(assign, spec)
    except RowRefusedError as refusal:
        raise InvalidRequestError(refusal.message, field="token_ids") from refusal
    return Row(
        assign,
        params_from_proto(request.sampling),
        spec,
        number=context.next_number(),
        arrived_s=now,
    )
