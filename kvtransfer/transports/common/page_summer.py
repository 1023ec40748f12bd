"""Checksums of pages in place: at once in host memory, asynchronously on a device."""

from __future__ import annotations

from typing import Protocol

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import DeviceMemory, Fence, Mark
from twolane.kvtransfer.digests import DEVICE_DIGESTS, HOST_DIGESTS, Pool, page_sums
from twolane.kvtransfer.transport import Checksums
from twolane.kvtransfer.transports.common.outlet_thread import NO_SUMS


class PageSummer(Protocol):
    """Used by one thread."""

    digests: tuple[str, ...]  # that it can compute, best first

    def sum(self, pages: PageIds, digest: str) -> tuple[Checksums, Fence | None]:
        """One checksum for each page; none for an empty digest. Filled once the fence is done.
        Raises `DeviceError`."""
        ...

    def after(self, mark: Mark) -> Fence:
        """Done when the device has passed the event."""
        ...

    def enter(self) -> None:
        """Make the pages' device current on this thread."""
        ...

    def close(self) -> None: ...


class HostSummer:
    """See `PageSummer`."""

    digests: tuple[str, ...] = HOST_DIGESTS

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def sum(self, pages: PageIds, digest: str) -> tuple[Checksums, Fence | None]:
        return (page_sums(digest)(self._pool, pages) if digest else NO_SUMS), None

    def after(self, mark: Mark) -> Fence:
        raise AssertionError("no device computes pages of host memory")

    def enter(self) -> None:
        """Host memory needs no device."""

    def close(self) -> None:
        """Owns nothing."""


class DeviceSummer:
    """See `PageSummer`."""

    digests: tuple[str, ...] = DEVICE_DIGESTS

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._copy_stream = memory.open_copy_stream()

    def sum(self, pages: PageIds, digest: str) -> tuple[Checksums, Fence | None]:
        if not digest:
            return NO_SUMS, None
        return self._copy_stream.sum(pages), self._copy_stream.mark()

    def after(self, mark: Mark) -> Fence:
        self._copy_stream.after(mark)  # guard: mark
        return self._copy_stream.mark()

    def enter(self) -> None:
        self._memory.enter()

    def close(self) -> None:
        self._copy_stream.close()
