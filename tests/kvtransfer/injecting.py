"""A device's memory some of whose pages go out as others: what was summed is not what arrives.

Pages go out by its copy streams, or are read by NIXL where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from twolane.kvtransfer.copy_plan import PageIds, runs
from twolane.kvtransfer.device import (
    Bytes,
    CopyStream,
    DeviceMemory,
    Fence,
    Mark,
    PeerPool,
    Region,
    Sums,
)
from twolane.kvtransfer.transports.nixl.agent import NixlAgent, NixlWrite, WriteState

LEFT_OUT = -1


class InjectingMemory:
    """See `SentMemory`. `goes_as[page]` is copied in place of that page; `LEFT_OUT`: nothing is."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.page_bytes = memory.page_bytes
        self.goes_as: PageIds = np.arange(memory.n_pages)

    def open_copy_stream(self) -> InjectingLane:
        return InjectingLane(self, self._memory.open_copy_stream())

    def forget(self) -> None:
        """Every page goes as itself again."""
        self.goes_as = np.arange(self._memory.n_pages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)


class InjectingLane:
    """See `CopyStream`: sums are those of the right pages."""

    def __init__(self, memory: InjectingMemory, lane: CopyStream) -> None:
        self._memory = memory
        self._copy_stream = lane

    def after(self, mark: Mark) -> None:
        self._copy_stream.after(mark)

    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        goes = self._memory.goes_as[src]
        kept = goes != LEFT_OUT
        if kept.any():
            self._copy_stream.to_peer(peer, goes[kept], dst[kept])

    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        goes = self._memory.goes_as[pages]
        places = np.flatnonzero(goes != LEFT_OUT)
        for begin, end in runs(places):
            span = slice(int(places[begin]), int(places[end - 1]) + 1)
            self._copy_stream.to_host(goes[span], buffer[span])

    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        self._copy_stream.from_host(buffer, pages)

    def sum(self, pages: PageIds) -> Sums:
        return self._copy_stream.sum(pages)

    def mark(self) -> Fence:
        return self._copy_stream.mark()

    def close(self) -> None:
        self._copy_stream.close()


class InjectingAgent(NixlAgent):
    """A sender's, which reads pages where they lie."""

    def __init__(self, memory: InjectingMemory, name: str, regions: Sequence[Region]) -> None:
        super().__init__(name, regions)
        self._memory = memory

    def write(self, src: PageIds, dst: PageIds) -> NixlWrite:
        goes = self._memory.goes_as[src]
        kept = goes != LEFT_OUT
        return super().write(goes[kept], dst[kept]) if kept.any() else _NothingWritten()


class _NothingWritten(NixlWrite):
    def __init__(self) -> None:
        super().__init__(None, None)

    def state(self) -> WriteState:
        return WriteState.DONE
