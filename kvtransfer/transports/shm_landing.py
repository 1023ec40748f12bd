"""Receiver's end of the shm transport: the sender writes into our pool; we look, and sum.

Revoking a grant here stops nobody: only the sender's own word, or the end of its process (pidfd,
the launcher), is proof that its pages are free.
"""

from __future__ import annotations

import select
import threading

from kvtransfer.checksum import Pool, page_checksums
from kvtransfer.plan import PageIds
from kvtransfer.transports.base import Checked, LandingEvent, Stopped, Wake
from kvtransfer.transports.mailbox import Mailbox
from kvtransfer.transports.pool_memory import PoolMemory


class ShmLanding:
    """See `Landing`. `pool` is the beginning of `memory`, which stays the caller's to close."""

    sender_writes = True

    def __init__(self, pool: Pool, memory: PoolMemory, *, checksums: bool) -> None:
        assert pool.flags.c_contiguous
        assert pool.ctypes.data == memory.array.ctypes.data, "the pool is not in that memory"
        self.address = memory.address
        self._pool = pool
        self._checksums = checksums
        self._pages: dict[int, PageIds] = {}  # by generation; the thread's
        self._mailbox: Mailbox[LandingEvent] = Mailbox()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="landing", daemon=True)
        self._thread.start()

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._mailbox.order(self._pages.__setitem__, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._mailbox.order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._mailbox.order(self._revoke, generation)

    def poll(self) -> list[LandingEvent]:
        return self._mailbox.poll()

    def set_wake(self, wake: Wake) -> None:
        self._mailbox.set_wake(wake)

    def close(self) -> None:
        if self._thread.is_alive():
            self._mailbox.order(self._end)
            self._thread.join()
            self._mailbox.close()

    # -- on the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._mailbox.bell, select.POLLIN)
        while not self._is_closing:
            poller.poll()
            self._mailbox.quiet()
            self._mailbox.take_orders()

    def _check(self, generation: int, first: int, n: int) -> None:
        pages = self._pages.get(generation)
        if pages is not None:
            span = pages[first : first + n]
            sums = page_checksums(self._pool, span) if self._checksums else None
            self._mailbox.tell(Checked(generation, first, n, sums))

    def _revoke(self, generation: int) -> None:
        self._pages.pop(generation, None)
        self._mailbox.tell(Stopped(generation))

    def _end(self) -> None:
        self._is_closing = True
