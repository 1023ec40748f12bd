"""What a nixl outlet writes from: memory that its agent registers, and pages of it by number."""

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
_N_SLOTS = 5  # of pages that are made: one more than are written at once


@dataclass(frozen=True, slots=True)
class Part:
    """Some pages of a post, ready to be written."""

    ids: PageIds  # in the registered memory
    sums: Checksums  # once the fence is done
    fence: Fence | None
    slot: int = -1  # `release`d when they are not read any more


class NixlSource(Protocol):
    """Used by one thread."""

    regions: tuple[Region, ...]
    page_bytes: int  # as the receiver lays pages out
    part_pages: int  # most that `take` may be asked for

    def enter(self) -> None:
        """On the thread that will make an agent of the regions. Raises `DeviceError`."""
        ...

    def after(self, mark: Mark) -> Fence:
        """Done when the pages that were offered with this mark are there."""
        ...

    def take(self, src: PageIds) -> Part | None:
        """These pages of a `CopyPlan`; None: not before something is released. Raises
        `DeviceError`."""
        ...

    def release(self, part: Part) -> None: ...

    def close(self) -> None: ...


class StoredPages:
    """Pages as they lie in a pool, of a host or of a device. See `NixlSource`."""

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
        """They lie where they were."""

    def close(self) -> None:
        self._summer.close()


class StagedPages:
    """Pages that are made for the receiver, in slots of host memory. See `NixlSource`."""

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
        """Slots are in host memory."""

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
        """Its memory goes with it."""
