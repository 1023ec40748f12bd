"""The one step of admission that may wait for others: a label, and a tenant's quotas, are taken
where routers share them."""

from __future__ import annotations

import asyncio

from twolane.router.dispatch.board import Board
from twolane.router.requests.request import Job
from twolane.router.store import Ask, Held, Short
from twolane.router.tenants.accounts import REFUSALS

_HANG_UP_S = 0.05  # within which a hang-up is heard of that came before a request


class Claims:
    """Of one router. What is claimed is released when the request leaves the board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    async def take(self, job: Job) -> None:
        """Raises `DuplicateRequestError`, and `QuotaError` for what all routers together count. A
        client that hangs up and asks again at once may be heard in the other order, so a label in
        use is looked at twice."""
        board = self._board
        account = board.accounts.of(job.tenant, job.arrived)
        ask = Ask(
            label=job.label,
            submission_id=job.submission_id,
            limits=account.limits,
            n_tokens=board.outlook.cost_tokens(job),
        )
        verdict = await board.store.admit(ask)
        if isinstance(verdict, Held):
            await asyncio.sleep(_HANG_UP_S)
            verdict = await board.store.admit(ask)
        if isinstance(verdict, Held):
            error = job.label.in_use_error()
            board.counters[f"refused.{error.reason.lower()}"] += 1
            raise error
        if isinstance(verdict, Short):
            board.counters[f"refused.{REFUSALS[verdict.quota]}"] += 1
            raise account.refused_by_all(verdict.quota, verdict.wait_s, verdict.remaining)

    def drop(self, job: Job) -> None:
        """It was not admitted after all."""
        if job.submission_id not in self._board.requests:
            self._board.store.release(job.submission_id, 0)
