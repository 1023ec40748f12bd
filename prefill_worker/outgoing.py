"""Rows on their way to a decode worker: the prefill role's calls to its `Sender`."""

from __future__ import annotations

from dataclasses import replace

from twolane.engine.prefix import UNIT_TOKENS
from twolane.engine.step import Mark, SampledToken
from twolane.kvtransfer.events import FirstToken
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.send.sender import Sender
from twolane.prefill_worker.config import PrefillConfig
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.context import WorkerContext
from twolane.worker.rows import Row, RowState


class Outgoing:
    """The sender of one prefill role. Rows that are also decoded here ("local") do not use it."""

    def __init__(self, context: WorkerContext, config: PrefillConfig) -> None:
        self._epoch = context.epoch
        share = max(1, int(context.spec.n_pages * config.holding_cap_share))
        cap_pages = config.sender.holding_cap_pages or share
        self.sender = Sender(
            context.epoch,
            context.pages,
            page_tokens=context.spec.page_tokens,
            page_bytes=context.spec.page_bytes,
            hash_tokens=UNIT_TOKENS,
            config=replace(config.sender, holding_cap_pages=cap_pages),
        )

    def key(self, row: Row) -> Key:
        return Key(*row.attempt, self._epoch, row.decode.epoch)

    def start(self, row: Row, now: float) -> None:
        """The row became COMPUTING: request pages at the decode worker, and offer the cached
        ones."""
        self.sender.open(
            self.key(row),
            n_tokens=row.n_input,
            prefix_hashes=row.unit_hashes,
            priority=row.assign.priority,
            now=now,
        )
        self.offer(row, row.n_computed, now)

    def offer(self, row: Row, n_done: int, now: float, after: Mark | None = None) -> None:
        """Offer the pages below position `n_done`: full pages, or all of them at the prompt's end.

        The positions are computed, or will be once the event `after` has happened. Pages that were
        offered before are not offered again.
        """
        is_whole = n_done == row.n_input
        end_page = row.n_prompt_pages if is_whole else n_done // row.spec.page_tokens
        first_page = row.n_offered_pages
        if end_page > first_page:
            row.n_offered_pages = end_page
            pages = row.pages[first_page:end_page]
            self.sender.offer(self.key(row), first_page, pages, now, after=after)
        if after is None:
            self.sender.computed(self.key(row), end_page, now)

    def finish(self, row: Row, first: SampledToken, now: float) -> None:
        """All pages were offered, and the first token is known."""
        self.sender.finish(self.key(row), FirstToken(first.token, first.logprob, first.top), now)

    def abandon(self, row: Row, reason: str, now: float) -> None:
        self.sender.abandon(self.key(row), reason, now)

    def retarget(
        self, row: Row, following: AttemptId, decode: worker_pb2.WorkerAddress, now: float
    ) -> bool:
        """Send the row to another decode worker, as attempt `following`. False if its pages are
        gone."""
        if row.state is not RowState.WAITING:
            new_key = Key(*following, self._epoch, decode.epoch)
            if not self.sender.retarget(self.key(row), new_key, now):
                return False
        row.attempt, row.decode = following, decode
        return True
