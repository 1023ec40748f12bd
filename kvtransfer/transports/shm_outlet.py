"""Sender's end of the shm transport: a thread copies pages into the receiver's mapped pool.

A post is complete when its last copy is: nothing of it is being written from then on.
"""

from __future__ import annotations

import numpy as np
import xxhash

from kvtransfer.checksum import Pool
from kvtransfer.plan import CopyPlan, runs
from kvtransfer.transports.base import Checksums
from kvtransfer.transports.outlet_thread import Job, OutletThread
from kvtransfer.transports.pool_memory import map_peer_memory

_TURN_BYTES = 1024 * 1024  # between two looks at the orders


class ShmOutlet(OutletThread):
    """See `Outlet`. Raises OSError at once when the receiver's memory cannot be mapped."""

    def __init__(self, address: str, pool: Pool, *, checksums: bool) -> None:
        remote = map_peer_memory(address)
        super().__init__()
        page_bytes = pool.shape[1]
        self._remote = remote[: remote.size // page_bytes * page_bytes].reshape(-1, page_bytes)
        self._pool = pool
        self._checksums = checksums
        self._is_called_back = False
        self._start()

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        if int(plan.dst.min()) >= 0 and int(plan.dst.max()) < len(self._remote):
            super().post(post, generation, plan)
        else:
            self._refuse(post)

    # -- on the thread ----------------------------------------------------------------------

    def _carry_out(self, job: Job) -> Checksums | None:
        """Each run is summed just before its copy reads it again."""
        self._is_called_back = False
        size, plan = self._pool.shape[1], job.plan
        sources, targets = plan.src.tolist(), plan.dst.tolist()
        flat, digest = self._pool.data.cast("B"), xxhash.xxh3_64_intdigest
        sums: list[int] = []
        since_look = 0
        for a, b in runs(plan.src, plan.dst):
            since_look += (b - a) * size
            if since_look >= _TURN_BYTES:
                since_look = 0
                self._mailbox.take_orders()
            if self._is_called_back or self._is_closing:
                return None
            s, t, n = sources[a], targets[a], b - a
            if self._checksums:
                sums += [digest(flat[i * size : (i + 1) * size]) for i in range(s, s + n)]
            self._remote[t : t + n] = self._pool[s : s + n]
        return np.array(sums, dtype=np.uint64)

    def _call_back(self) -> None:
        self._is_called_back = True  # complete only when the copy under way has ended
