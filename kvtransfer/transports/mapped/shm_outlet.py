"""Sender's end of the shm transport: a thread copies pages into the receiver's mapped pool.

A post is complete when its last copy is: nothing of it is written from then on.
"""

from __future__ import annotations

import numpy as np
import xxhash

from twolane.kvtransfer.copy_plan import CopyPlan, PageIds, runs
from twolane.kvtransfer.digests import XXH3, Pool
from twolane.kvtransfer.layouts.sources import Source
from twolane.kvtransfer.transport import Checksums
from twolane.kvtransfer.transports.common.outlet_thread import Job, OutletThread
from twolane.kvtransfer.transports.common.shared_memory import map_peer_memory

_TURN_BYTES = 1024 * 1024  # copied before orders are run again


class ShmOutlet(OutletThread):
    """See `Outlet`. Raises OSError if the receiver's memory cannot be mapped."""

    def __init__(self, address: str, source: Source, *, digest: str) -> None:
        remote = map_peer_memory(address)
        super().__init__()
        page_bytes = source.page_bytes
        self._remote = remote[: remote.size // page_bytes * page_bytes].reshape(-1, page_bytes)
        self._source = source
        assert digest in ("", XXH3), digest
        self._is_summing = bool(digest)
        self._is_called_back = False
        self._since_look = 0  # bytes copied since orders were run
        self._start()

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        if int(plan.dst.min()) >= 0 and int(plan.dst.max()) < len(self._remote):
            super().post(post, generation, plan)
        else:
            self._refuse(post)

    # -- on the thread ----------------------------------------------------------------------

    def _carry_out(self, job: Job) -> Checksums | None:
        """Computes each run's checksums just before its copy reads it again: it is in the cache."""
        self._is_called_back = False
        plan, batch = job.plan, self._source.batch_pages
        self._since_look = 0
        sums: list[int] = []
        for at in range(0, plan.n_pages, batch):
            pool, src = self._source.take(plan.src[at : at + batch])
            if not self._copy(pool, src, plan.dst[at : at + batch], sums):
                return None
        return np.array(sums, dtype=np.uint64)

    def _copy(self, pool: Pool, src: PageIds, dst: PageIds, sums: list[int]) -> bool:
        """False if it was cancelled before its end."""
        size = self._source.page_bytes
        sources, targets = src.tolist(), dst.tolist()
        flat, digest = pool.data.cast("B"), xxhash.xxh3_64_intdigest
        for a, b in runs(src, dst):
            self._since_look += (b - a) * size
            if self._since_look >= _TURN_BYTES:
                self._since_look = 0
                self._mailbox.take_orders()
            if self._is_called_back or self._is_closing:
                return False
            s, t, n = sources[a], targets[a], b - a
            if self._is_summing:
                sums += [digest(flat[i * size : (i + 1) * size]) for i in range(s, s + n)]
            self._remote[t : t + n] = pool[s : s + n]
            self.n_moved += n
        return True

    def _call_back(self) -> None:
        self._is_called_back = True  # it completes when the copy under way has ended
