"""Sender's end of the shm transport: a thread copies pages into the receiver's mapped pool.

A post is complete when its last copy is: nothing of it is being written from then on.
"""

from __future__ import annotations

import select
import threading
from collections import deque

import numpy as np
import xxhash

from kvtransfer.checksum import Pool
from kvtransfer.plan import CopyPlan, runs
from kvtransfer.transports.base import Checksums, Posted, Wake
from kvtransfer.transports.mailbox import Mailbox
from kvtransfer.transports.pool_memory import map_peer_memory

_TURN_BYTES = 1024 * 1024  # between two looks at the orders
_NO_SUMS: Checksums = np.empty(0, dtype=np.uint64)


class ShmOutlet:
    """See `Outlet`. Raises OSError at once when the receiver's memory cannot be mapped."""

    def __init__(self, address: str, pool: Pool, *, checksums: bool) -> None:
        remote = map_peer_memory(address)
        page_bytes = pool.shape[1]
        self._remote = remote[: remote.size // page_bytes * page_bytes].reshape(-1, page_bytes)
        self._pool = pool
        self._checksums = checksums
        self._mailbox: Mailbox[Posted] = Mailbox()
        self._jobs: deque[tuple[int, int, CopyPlan]] = deque()  # (post, generation, plan)
        self._cancelled: int | None = None  # the generation being copied, called back
        self._copying: int | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)
        self._thread.start()

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        in_range = int(plan.dst.min()) >= 0 and int(plan.dst.max()) < len(self._remote)
        if in_range and self._thread.is_alive():
            self._mailbox.order(self._jobs.append, (post, generation, plan))
        else:
            self._mailbox.tell(Posted(post, False, _NO_SUMS))

    def cancel(self, generation: int) -> None:
        if self._thread.is_alive():
            self._mailbox.order(self._cancel, generation)

    def poll(self) -> list[Posted]:
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
            if not self._jobs:
                poller.poll()
                self._mailbox.quiet()
                self._mailbox.take_orders()
                continue
            post, generation, plan = self._jobs.popleft()
            self._copying = generation
            sums = self._copy(plan)
            self._copying = None
            self._mailbox.tell(Posted(post, sums is not None, _NO_SUMS if sums is None else sums))
        self._mailbox.take_orders()
        self._mailbox.tell(*(Posted(post, False, _NO_SUMS) for post, _, _ in self._jobs))

    def _copy(self, plan: CopyPlan) -> Checksums | None:
        """None: called back half-way. Each run is summed just before its copy reads it again."""
        self._cancelled = None
        size = self._pool.shape[1]
        sources, targets = plan.src.tolist(), plan.dst.tolist()
        flat, digest = self._pool.data.cast("B"), xxhash.xxh3_64_intdigest
        sums: list[int] = []
        since_look = 0
        for a, b in runs(plan.src, plan.dst):
            since_look += (b - a) * size
            if since_look >= _TURN_BYTES:
                since_look = 0
                self._mailbox.take_orders()
            if self._cancelled is not None or self._is_closing:
                return None
            s, t, n = sources[a], targets[a], b - a
            if self._checksums:
                sums += [digest(flat[i * size : (i + 1) * size]) for i in range(s, s + n)]
            self._remote[t : t + n] = self._pool[s : s + n]
        return np.array(sums, dtype=np.uint64)

    def _cancel(self, generation: int) -> None:
        for job in [job for job in self._jobs if job[1] == generation]:
            self._jobs.remove(job)
            self._mailbox.tell(Posted(job[0], False, _NO_SUMS))
        if self._copying == generation:
            self._cancelled = generation

    def _end(self) -> None:
        self._is_closing = True
