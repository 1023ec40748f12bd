"""Destination pages that are granted to one sender under one ticket.

             all verified
    OPEN ------------------> KEPT           the pages are the row's
      |
      | revoked: the pages are quarantined
      v           proof
    REVOKED ----------------> FREED

    OPEN    -> REVOKED, KEPT
    REVOKED -> FREED

The writer proves that it no longer writes to the pages. If this process writes (tcp, unix, shm
between devices), or can close the sender's way in (nixl), the proof is its landing's `Stopped`. If
the sender writes (`Landing.sender_writes`: cuda_ipc, shm between CPUs), it is the sender's Drained
or Abandon, or the end of its process.
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer.key import Key
from twolane.kvtransfer.retry import Retry
from twolane.kvtransfer.transport import Checked, Landing
from twolane.lifecycle import Lifecycle
from twolane.v1 import transfer_pb2


class GrantState(Enum):
    OPEN = auto()
    REVOKED = auto()
    KEPT = auto()
    FREED = auto()


GRANT_MOVES = {
    GrantState.OPEN: frozenset({GrantState.REVOKED, GrantState.KEPT}),
    GrantState.REVOKED: frozenset({GrantState.FREED}),
    GrantState.KEPT: frozenset[GrantState](),
    GrantState.FREED: frozenset[GrantState](),
}


class InGrant:
    """The sender fills `pages`; `skipped` pages were in the prefix cache already.

    The grant holds one reference to each until it is `KEPT` or `REVOKED`.
    """

    def __init__(
        self,
        key: Key,
        generation: int,
        skipped: list[int],
        pages: list[int],
        landing: Landing,
        retry: Retry,
    ) -> None:
        self.key = key
        self.generation = generation
        self.skipped = skipped
        self.pages = pages
        self.landing = landing
        self.life = Lifecycle(GrantState.OPEN, GRANT_MOVES)
        self.revoked_at = 0.0
        self.reason = ""  # why it was revoked
        self.retry = retry  # of Revoke
        self._chunks: set[int] = set()
        self._announced: npt.NDArray[np.bool_] = np.zeros(len(pages), dtype=bool)
        self._verified: npt.NDArray[np.bool_] = np.zeros(len(pages), dtype=bool)
        self._summed: npt.NDArray[np.bool_] = np.zeros(len(pages), dtype=bool)
        self._sums: npt.NDArray[np.uint64] = np.zeros(len(pages), dtype=np.uint64)

    @property
    def ticket(self) -> transfer_pb2.Ticket:
        return self.key.ticket(self.generation)

    @property
    def is_open(self) -> bool:
        return self.life.state is GrantState.OPEN

    @property
    def is_begun(self) -> bool:
        """A Chunk came, alone or in DONE, so the sender knows this ticket."""
        return bool(self._chunks)

    @property
    def is_announced(self) -> bool:
        """Chunks came for all pages."""
        return bool(self._announced.all())

    @property
    def is_verified(self) -> bool:
        """All pages have landed, and their checksums are equal to the sender's."""
        return bool(self._verified.all())

    def reserved(self) -> transfer_pb2.Reserved:
        return transfer_pb2.Reserved(
            ticket=self.ticket, pages=self.pages, skip_pages=len(self.skipped)
        )

    def knows(self, chunk: transfer_pb2.Chunk) -> bool:
        return chunk.index in self._chunks

    def announce(self, chunk: transfer_pb2.Chunk, *, require_checksums: bool) -> bool:
        """Store the checksums of a Chunk. False if the Chunk is malformed."""
        first, n = chunk.first_page - len(self.skipped), chunk.n_pages
        if first < 0 or n < 1 or first + n > len(self.pages):
            return False
        if self._announced[first : first + n].any():  # guard: once
            return False
        if len(chunk.checksums) not in ((n,) if require_checksums else (0, n)):
            return False
        self._chunks.add(chunk.index)
        self._announced[first : first + n] = True
        if chunk.checksums:
            self._summed[first : first + n] = True
            self._sums[first : first + n] = chunk.checksums
        return True

    def verify(self, checked: Checked) -> bool:
        """Announced pages have landed. False if a checksum differs from the sender's."""
        span = slice(checked.first, checked.first + checked.n_pages)
        if checked.checksums is not None:
            differs = self._summed[span] & (self._sums[span] != checked.checksums)
            if differs.any():  # guard: checksum
                return False
        self._verified[span] = True
        return True
