"""One sender's connection to a stream landing: bytes off the socket, straight into granted pages.

HEAD --- hello, fits ------> HEAD                 (once)
HEAD --- pages, claimed ---> BODY --- complete --> HEAD        bytes land in the pool
HEAD --- pages, refused ---> SCRAP -- drained ---> HEAD        bytes land nowhere
BODY --- grant revoked ----> SCRAP
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from kvtransfer.plan import PageIds, runs
from kvtransfer.transports.base import Checked
from kvtransfer.transports.frames import HEAD_BYTES, FrameError, Hello, Pages, unpack
from kvtransfer.transports.landing_table import LandingTable

_READ_BYTES = 256 * 1024  # of one recvmsg_into: larger ones measured 30 % slower over tcp
_BUDGET_BYTES = 8 * 1024 * 1024  # before another connection gets its turn
_SCRAP = memoryview(bytearray(1024 * 1024))


@dataclass(frozen=True, slots=True)
class LandingGround:
    """What all connections of a landing share; used by its thread alone."""

    receiver_epoch: int
    flat: memoryview  # the pool, as bytes
    page_bytes: int
    checksums: bool
    table: LandingTable
    take_orders: Callable[[], None]  # grants and revokes made until now come first


class Arrival:
    """Non-blocking. `read` raises FrameError or OSError when the connection is of no use."""

    def __init__(self, stream: socket.socket, ground: LandingGround) -> None:
        self.stream = stream
        self._ground = ground
        self._epoch = 0  # of the sender; 0 until its hello
        self._head = bytearray(HEAD_BYTES)
        self._head_filled = 0
        self._pages: Pages | None = None  # the frame whose body is being read
        self._ids: PageIds = np.empty(0, dtype=np.int64)
        self._views: list[memoryview] = []  # of the body, not filled yet from `_at` on
        self._at = 0
        self._scrap_left = 0

    @property
    def is_known(self) -> bool:
        """It said hello, and means us."""
        return self._epoch != 0

    def read(self) -> tuple[bool, list[Checked]]:
        """Read until nothing is there, or the turn is over. False: the sender hung up."""
        news: list[Checked] = []
        budget = _BUDGET_BYTES
        while budget > 0:
            try:
                n = self._read_some()
            except BlockingIOError:
                break
            if n == 0:
                return False, news
            budget -= n
            self._advance(n, news)
        return True, news

    def stop(self, generation: int) -> None:
        """Not a byte more into the pages of that grant."""
        if self._pages is not None and self._pages.generation == generation:
            self._scrap_left = sum(len(view) for view in self._views[self._at :])
            self._pages = None

    def _read_some(self) -> int:
        if self._pages is not None:
            most = max(1, _READ_BYTES // self._ground.page_bytes)
            views = self._views[self._at : self._at + most]
            return self.stream.recvmsg_into(views)[0]
        if self._scrap_left:
            return self.stream.recv_into(_SCRAP[: self._scrap_left])
        return self.stream.recv_into(memoryview(self._head)[self._head_filled :])

    def _advance(self, n: int, news: list[Checked]) -> None:
        if self._pages is not None:
            self._advance_body(n)
            if self._at == len(self._views):
                news += self._end_body(self._pages)
        elif self._scrap_left:
            self._scrap_left -= n
        else:
            self._head_filled += n
            if self._head_filled == HEAD_BYTES:
                self._head_filled = 0
                self._begin(unpack(self._head))

    def _advance_body(self, n: int) -> None:
        while n:
            view = self._views[self._at]
            if n < len(view):
                self._views[self._at] = view[n:]
                return
            n -= len(view)
            self._at += 1

    def _begin(self, frame: Hello | Pages) -> None:
        ground = self._ground
        if isinstance(frame, Hello):
            if self._epoch or not frame.sender_epoch:
                raise FrameError("a second hello, or one without an epoch")
            if frame.receiver_epoch != ground.receiver_epoch:
                raise FrameError(f"meant for epoch {frame.receiver_epoch:x}")
            if frame.page_bytes != ground.page_bytes:
                raise FrameError(f"pages of {frame.page_bytes} bytes; here {ground.page_bytes}")
            self._epoch = frame.sender_epoch
            return
        if not self._epoch or frame.payload_bytes != frame.n_pages * ground.page_bytes:
            raise FrameError(f"{frame.n_pages} pages in {frame.payload_bytes} bytes")
        ground.take_orders()
        ids = ground.table.claim(self._epoch, frame.generation, frame.first, frame.n_pages)
        if ids is None:
            self._scrap_left = frame.payload_bytes
            return
        size = ground.page_bytes
        self._pages = frame
        self._ids = ids
        starts = ids.tolist()
        self._views = [
            ground.flat[starts[a] * size : (starts[a] + b - a) * size] for a, b in runs(ids)
        ]
        self._at = 0

    def _end_body(self, frame: Pages) -> list[Checked]:
        self._pages = None
        self._views = []
        sums = self._sum(self._ids) if self._ground.checksums else None
        return self._ground.table.landed(frame.generation, frame.first, frame.n_pages, sums)

    def _sum(self, ids: PageIds) -> npt.NDArray[np.uint64]:
        size, flat, digest = self._ground.page_bytes, self._ground.flat, xxhash.xxh3_64_intdigest
        starts = (ids * size).tolist()
        return np.fromiter((digest(flat[s : s + size]) for s in starts), np.uint64, len(starts))
