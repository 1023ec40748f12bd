"""A sender's grant: the destination pages of one ticket, and which of them are posted and sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import Mark
from twolane.kvtransfer.events import FirstToken
from twolane.kvtransfer.layouts.gather import Paging
from twolane.v1 import transfer_pb2


class OutGrant:
    """One accepted Reserved. Page i of the row, i >= skip, goes to destination i - skip.

    All pages counted here are the receiver's; `paging` maps them to source pages.
    """

    def __init__(self, reserved: transfer_pb2.Reserved, paging: Paging, n_tokens: int) -> None:
        self.ticket = reserved.ticket
        self.paging = paging
        self._n_tokens = n_tokens
        self.skip: int = reserved.skip_pages
        self.destinations = np.asarray(reserved.pages, dtype=np.int64)
        self.n_posted = self.skip  # the row's pages before it were posted or skipped
        self.n_chunks = 0  # posts made
        self.chunks: list[transfer_pb2.Chunk] = []  # of the posts that are complete

    @property
    def generation(self) -> int:
        return self.ticket.generation

    @property
    def n_pages(self) -> int:
        """How many pages it moves."""
        return int(self.destinations.size)

    @property
    def n_bytes(self) -> int:
        return self.n_pages * self.paging.target_bytes

    @property
    def is_sent(self) -> bool:
        """All pages were posted and all posts are complete."""
        return self.n_posted == self.skip + self.n_pages and len(self.chunks) == self.n_chunks

    def next_plan(
        self, offered: list[int], most_pages: int, marks: Sequence[tuple[int, int, Mark]] = ()
    ) -> CopyPlan | None:
        """The next run of pages that offered ones make up, from now on counted as one chunk.

        It waits for the mark of the last page that it reads, if that has one: [begin, end, mark).

        A page of the receiver's that reaches into a page not offered yet waits for that.
        """
        n_ready = self.paging.n_ready(len(offered), self._n_tokens)
        stop = min(n_ready, self.n_posted + most_pages)
        if stop <= self.n_posted:
            return None
        first = self.n_posted - self.skip
        source = self.paging.sources(offered, self.n_posted, stop, self._n_tokens)
        self.n_posted = stop
        self.n_chunks += 1
        last = self.paging.n_sources(stop, self._n_tokens) - 1
        found = (mark for begin, end, mark in marks if begin <= last < end)
        after = next(found, None)  # guard: mark
        return CopyPlan(first, source, self.destinations[first : first + len(source)], after)

    def chunk(self, index: int, plan: CopyPlan, checksums: list[int]) -> transfer_pb2.Chunk:
        """The post is complete: store and return the Chunk that announces it."""
        chunk = transfer_pb2.Chunk(
            ticket=self.ticket,
            index=index,
            first_page=self.skip + plan.first,
            n_pages=plan.n_pages,
            checksums=checksums,
        )
        self.chunks.append(chunk)
        return chunk

    def done(
        self, first: FirstToken, last_chunk: transfer_pb2.Chunk | None = None
    ) -> transfer_pb2.Done:
        """All is sent. `last_chunk`: the one that no message has announced yet."""
        message = transfer_pb2.Done(
            ticket=self.ticket,
            n_chunks=self.n_chunks,
            n_bytes=self.n_bytes,
            first_token=first.token,
            top_ids=[token for token, _ in first.top],
            top_logprobs=[logprob for _, logprob in first.top],
            last_chunk=last_chunk,
        )
        if first.logprob is not None:
            message.first_logprob = first.logprob
        return message
