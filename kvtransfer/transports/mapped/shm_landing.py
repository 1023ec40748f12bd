"""Receiver's end of the shm transport: the sender writes into our pool; this end sums.

Revoking a grant does not stop the sender here: only its Drained, or the end of its process (pidfd,
the launcher), proves that it no longer writes to the pages.
"""

from __future__ import annotations

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.digests import XXH3, Pool, page_checksums
from twolane.kvtransfer.page_lane import PLAIN_RECEIVER
from twolane.kvtransfer.transport import Checked, LandingEvent, Stopped
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory
from twolane.kvtransfer.transports.common.thread import TransportThread


class ShmLanding(TransportThread[LandingEvent]):
    """See `Landing`. `pool` is the beginning of `memory`, which the caller closes."""

    sender_writes = True
    lane = PLAIN_RECEIVER

    def __init__(self, pool: Pool, memory: PoolMemory, *, checksums: bool) -> None:
        super().__init__("landing")
        assert pool.flags.c_contiguous
        assert pool.ctypes.data == memory.array.ctypes.data, "the pool is not in that memory"
        self.address = memory.address
        self._pool = pool
        self.digests: tuple[str, ...] = (XXH3,) if checksums else ()
        self._pages: dict[int, PageIds] = {}  # by generation; used by the thread
        self._start()

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._order(self._pages.__setitem__, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._order(self._revoke, generation)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        self._wait()

    def _check(self, generation: int, first: int, n: int) -> None:
        pages = self._pages.get(generation)
        if pages is not None:
            span = pages[first : first + n]
            sums = page_checksums(self._pool, span) if self.digests else None
            self._mailbox.tell(Checked(generation, first, n, sums))

    def _revoke(self, generation: int) -> None:
        self._pages.pop(generation, None)
        self._mailbox.tell(Stopped(generation))
