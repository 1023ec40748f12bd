"""Claims a request's label and its share of the tenant's quotas in the store that routers share:
the only step of admission that waits for another process."""

from __future__ import annotations

import asyncio

from twolane.errors import UnknownSubmissionError
from twolane.router.dispatch.board import Board
from twolane.router.requests.request import Job
from twolane.router.store import Ask, Held, Short, Verdict
from twolane.router.tenants.accounts import REFUSALS

_HANG_UP_S = 0.05  # within which a client's earlier disconnect has been processed


class Claims:
    """The claims of one router. The board releases them when the request is removed."""

    def __init__(self, board: Board) -> None:
        self._board = board

    async def take(self, job: Job) -> None:
        """Claim a job's label and quotas. Raises `DuplicateRequestError`, `QuotaError` for quotas
        that all routers count together, and `UnknownSubmissionError` if a request with the job's
        submission id runs here. If the label is in use, tries once more after a moment: when a
        client disconnects and repeats its request at once, the repeat may arrive before the
        disconnect."""
        board = self._board
        account = board.accounts.of(job.tenant, job.arrived)
        ask = Ask(
            label=job.label,
            submission_id=job.submission_id,
            limits=account.limits,
            n_tokens=board.outlook.cost_tokens(job),
        )
        verdict = await self._ask(ask)
        if isinstance(verdict, Held):
            await asyncio.sleep(_HANG_UP_S)
            verdict = await self._ask(ask)
        if isinstance(verdict, Held):
            error = job.label.in_use_error()
            board.counters[f"refused.{error.reason.lower()}"] += 1
            raise error
        if isinstance(verdict, Short):
            board.counters[f"refused.{REFUSALS[verdict.quota]}"] += 1
            raise account.refused_by_all(verdict.quota, verdict.wait_s, verdict.remaining)

    async def _ask(self, ask: Ask) -> Verdict:
        # It is another tenant's, or has another resume token. This job must not get its claims.
        if ask.submission_id in self._board.requests:
            raise UnknownSubmissionError("you have no such answer")
        return await self._board.store.admit(ask)

    def drop(self, job: Job) -> None:
        """Release the claims of a job that was not admitted."""
        if job.submission_id not in self._board.requests:
            self._board.store.release(job.submission_id, 0)
