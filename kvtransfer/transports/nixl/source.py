"""Where a nixl outlet reads: memory that its agent registers, and pages in it by number."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import Fence, Mark, Region, region_of
from twolane.kvtransfer.digests import Pool
from twolane.kvtransfer.layouts.sources import Source
from twolane.kvtransfer.transport import Checksums
from twolane.kvtransfer.transports.common.page_summer import HostSummer, PageSummer

_SLICE_BYTES = 4 * 1024 * 1024  # of one write: 64 pages of 64 KiB
_N_SLOTS = 5  # of converted pages: one more than are written at once


@dataclass(frozen=True, slots=True)
class Part:
    """Some pages of a post, ready to write."""

    ids: PageIds  # in the registered memory
    sums: Checksums  # once the fence is done
    fence: Fence | None
    slot: int = -1  # `release`d when they are no longer read


class NixlSource(Protocol):
    """Used by one thread."""

    regions: tuple[Region, ...]
    page_bytes: int  # of the receiver's layout
    part_pages: int  # most pages of one `take`

    def enter(self) -> None:
        """Call on the thread that creates the agent of these regions. Raises `DeviceError`."""
        ...

    def after(self, mark: Mark) -> Fence:
        """Done when the pages that were offered with this event are computed."""
        ...

    def take(self, src: PageIds) -> Part | None:
        """These source pages of a `CopyPlan`; None while no slot is free. Raises `DeviceError`."""
        ...

    def release(self, part: Part) -> None: ...

    def close(self) -> None: ...


class StoredPages:
    """Pages of a pool as they are, on a host or a device. See `NixlSource`."""

    def __init__(
        self, regions: tuple[Region, ...], page_bytes: int, summer: PageSummer, digest: str
    ) -> None:
        self.regions = regions
        self.page_bytes = page_bytes
        self.part_pages = max(1, _SLICE_BYTES // page_bytes)
        self._summer = summer
        self._digest = digest

    def enter(self) -> None:
        self._summer.enter()

    def after(self, mark: Mark) -> Fence:
        return self._summer.after(mark)

    def take(self, src: PageIds) -> Part | None:
        return Part(src, *self._summer.sum(src, self._digest))

    def release(self, part: Part) -> None:
        """There are no slots."""

    def close(self) -> None:
        self._summer.close()


class StagedPages:
    """Pages that are converted for the receiver, in slots of host memory. See `NixlSource`."""

    def __init__(self, source: Source, digest: str) -> None:
        self.page_bytes = source.page_bytes
        self.part_pages = min(source.batch_pages, max(1, _SLICE_BYTES // source.page_bytes))
        self._source = source
        self._digest = digest
        n_pages = _N_SLOTS * self.part_pages
        self._slots: Pool = np.empty((n_pages, self.page_bytes), dtype=np.uint8)
        self.regions: tuple[Region, ...] = (region_of(self._slots),)
        self._summer = HostSummer(self._slots)
        self._free = deque(range(_N_SLOTS))

    def enter(self) -> None:
        """The slots are in host memory: there is no device."""

    def after(self, mark: Mark) -> Fence:
        return self._summer.after(mark)

    def take(self, src: PageIds) -> Part | None:
        if not self._free:
            return None
        slot = self._free.popleft()
        made, ids = self._source.take(src)
        at = slot * self.part_pages + np.arange(len(ids), dtype=np.int64)
        self._slots[at[0] : at[-1] + 1] = made[ids]
        return Part(at, *self._summer.sum(at, self._digest), slot)

    def release(self, part: Part) -> None:
        self._free.append(part.slot)

    def close(self) -> None:
        """Frees the slots."""
