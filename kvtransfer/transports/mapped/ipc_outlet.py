"""Sender's end of the cuda_ipc transport: copies pages directly into the receiver's mapped pool.

    jobs    [job] [job] ...
    copies    wait slice slice slice      a few under way; no other stream waits for them

Slices are small, so that a cancelled post ends soon; several posts may be under way, so that the
copy stream never runs empty between two. A post is complete when its last slice is: nothing of it
is read or written from then on. Where pages are still being computed, the copy stream waits for the
engine's event, and the copies begin without this thread.

Polling the device takes time from the threads that feed it: it is rare while pages are computed,
and the rarer the longer a copy has taken.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import DeviceError, Fence, SentMemory
from twolane.kvtransfer.transport import Checksums, Posted
from twolane.kvtransfer.transports.common.outlet_thread import NO_SUMS
from twolane.kvtransfer.transports.common.thread import TransportThread, pause

SLICE_BYTES = 256 * 1024 * 1024  # 0.7 ms over NVLink, and 40 us for each slice
SLICES_AHEAD = 8  # so that chunks which are still being computed can wait
_COMPUTE_PAUSE_S = 200e-6
_COPY_PAUSE_S = 5e-6  # at least; longer for a copy that takes longer,
_PAUSE_SHARE = 1 / 16  # by as much of its time, but no longer than
_MOST_PAUSE_S = 100e-6

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Job:
    """One post. It is complete when all slices were launched, or dropped, and have ended."""

    post: int
    generation: int
    plan: CopyPlan
    launched: int = 0  # pages
    slices: int = 0  # under way, counting the wait before them
    ok: bool = True
    sums: list[Checksums] = field(default_factory=list)

    @property
    def is_launched(self) -> bool:
        return self.launched == self.plan.n_pages or not self.ok


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """A copy of some pages of a job, or the wait until they are computed."""

    job: _Job
    fence: Fence
    is_wait: bool = False


class IpcOutlet(TransportThread[Posted]):
    """See `Outlet`. Raises `DeviceError` if the receiver's pool cannot be mapped."""

    def __init__(self, address: str, memory: SentMemory, *, digest: str) -> None:
        self._peer = memory.open_peer(address)
        try:
            self._copy_stream = memory.open_copy_stream()
        except DeviceError:
            self._peer.close()
            raise
        super().__init__("outlet")
        self._is_summing = bool(digest)
        self._slice_pages = max(1, SLICE_BYTES // memory.page_bytes)
        self._jobs: deque[_Job] = deque()  # not all launched
        self._slices: deque[_Slice] = deque()
        self._awaited: _Slice | None = None  # the oldest, at the last pause
        self._awaited_since_s = 0.0
        self._start()

    @property
    def n_peer_pages(self) -> int:
        """The mapping of the receiver's pool."""
        return self._peer.n_pages

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        pages = plan.dst.tolist()
        fits = min(pages) >= 0 and max(pages) < self._peer.n_pages
        if fits and self._is_running:
            self._order(self._jobs.append, _Job(post, generation, plan))
        else:
            self._mailbox.tell(Posted(post, False, NO_SUMS))

    def cancel(self, generation: int) -> None:
        self._order(self._cancel, generation)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        self._mailbox.take_orders()  # guard: orders heard
        while self._jobs and len(self._slices) < SLICES_AHEAD:
            job = self._jobs[0]
            if not job.is_launched:
                self._launch(job)
            if job.is_launched:
                self._jobs.popleft()
                self._end_if_over(job)
        if not self._slices:
            self._wait()
        elif not self._look():
            self._pause()

    def _launch(self, job: _Job) -> None:
        plan, at = job.plan, job.launched
        span = slice(at, min(plan.n_pages, at + self._slice_pages))
        try:
            if plan.after is not None and not at:
                self._copy_stream.after(plan.after)  # guard: mark
                self._slices.append(_Slice(job, self._copy_stream.mark(), is_wait=True))
                job.slices += 1
            if self._is_summing:
                job.sums.append(self._copy_stream.sum(plan.src[span]))
            self._copy_stream.to_peer(self._peer, plan.src[span], plan.dst[span])
        except DeviceError:
            job.ok = False
        # A part may be under way though the device refused: it ends before this fence.
        self._slices.append(_Slice(job, self._copy_stream.mark()))
        job.launched = span.stop
        job.slices += 1

    def _look(self) -> bool:
        """Whether the oldest slice has ended."""
        oldest = self._slices[0]
        try:
            if not oldest.fence.is_done():
                return False
        except DeviceError:
            oldest.job.ok = False
        self._slices.popleft()
        self._awaited = None
        self.n_moved += 1
        oldest.job.slices -= 1
        self._end_if_over(oldest.job)
        return True

    def _pause(self) -> None:
        """Pause before the next poll of the oldest slice."""
        oldest, now = self._slices[0], time.monotonic()
        if oldest is not self._awaited:  # it could not begin before
            self._awaited, self._awaited_since_s = oldest, now
        taken_s = now - self._awaited_since_s
        pause_s = max(_COPY_PAUSE_S, min(taken_s * _PAUSE_SHARE, _MOST_PAUSE_S))
        time.sleep(_COMPUTE_PAUSE_S if oldest.is_wait else pause_s)

    def _end_if_over(self, job: _Job) -> None:
        if job.slices:  # guard: slices under way
            return
        if job.is_launched and job not in self._jobs:
            sums = np.concatenate(job.sums) if job.ok and job.sums else NO_SUMS
            self._mailbox.tell(Posted(job.post, job.ok, sums))

    def _cancel(self, generation: int) -> None:
        for job in [job for job in self._jobs if job.generation == generation]:
            self._jobs.remove(job)
            job.ok = False
            self._end_if_over(job)
        for one in self._slices:
            if one.job.generation == generation:
                one.job.ok = False  # reported when its last slice has ended

    def _leave(self) -> None:
        self._mailbox.take_orders()
        for job in list(self._jobs):
            self._jobs.remove(job)
            job.ok = False
            self._end_if_over(job)
        while self._slices:
            if not self._look():
                pause()
        self._copy_stream.close()
        try:
            self._peer.close()
        except DeviceError as error:  # nothing writes to it; only address space is lost
            _log.warning("a receiver's pool stays mapped: %s", error)
