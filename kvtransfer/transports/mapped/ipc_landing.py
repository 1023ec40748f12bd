"""Receiver's end of the cuda_ipc transport: the sender writes into our device; this end sums.

Revoking a grant does not stop the sender here: only its Drained, or the end of its process (pidfd,
the launcher), proves that it no longer writes to the pages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import DeviceError, DeviceMemory
from twolane.kvtransfer.digests import DEVICE_DIGESTS
from twolane.kvtransfer.page_lane import PLAIN_RECEIVER
from twolane.kvtransfer.transport import Checked, LandingEvent, Stopped
from twolane.kvtransfer.transports.common.pending_sums import PendingSums
from twolane.kvtransfer.transports.common.thread import TransportThread


class IpcLanding(TransportThread[LandingEvent]):
    """See `Landing`. Raises `DeviceError` if the pool cannot be exported. Close it before that."""

    sender_writes = True
    lane = PLAIN_RECEIVER

    def __init__(self, memory: DeviceMemory, *, checksums: bool) -> None:
        address = memory.export()
        super().__init__("landing")
        self.address = address
        self.digests: tuple[str, ...] = DEVICE_DIGESTS if checksums else ()
        self._copy_stream = memory.open_copy_stream() if checksums else None
        self._pages: dict[int, PageIds] = {}  # by generation; used by the thread if there is one
        self._sums = PendingSums(self._mailbox)
        if checksums:
            self._start()

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._order(self._pages.__setitem__, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._order(self._revoke, generation)

    def _order(self, work: Callable[..., None], *args: Any) -> None:
        """Without checksums nothing waits for the device: run it at once, on this thread."""
        if self._copy_stream is None:
            work(*args)
        else:
            super()._order(work, *args)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        if not self._sums:
            self._wait()
        elif not self._sums.look():
            self._nap()

    def _check(self, generation: int, first: int, n: int) -> None:
        pages = self._pages.get(generation)
        if pages is None:
            return
        if self._copy_stream is None:
            self._mailbox.tell(Checked(generation, first, n, None))
            return
        with suppress(DeviceError):  # it stays unanswered: the receiver's timeout ends it
            sums = self._copy_stream.sum(pages[first : first + n])
            self._sums.add(generation, first, sums, self._copy_stream.mark())

    def _revoke(self, generation: int) -> None:
        self._pages.pop(generation, None)
        self._mailbox.tell(Stopped(generation))

    def _leave(self) -> None:
        if self._copy_stream is not None:
            self._copy_stream.close()
