"""What every sender's end with a thread shares: posts one after the other, and their completion."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass

import numpy as np

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.transport import Checksums, Posted
from twolane.kvtransfer.transports.common.thread import TransportThread

NO_SUMS: Checksums = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Job:
    """One post."""

    post: int
    generation: int
    plan: CopyPlan


class OutletThread(TransportThread[Posted]):
    """See `Outlet`. A subclass carries out jobs, and knows how one is called back half-way."""

    def __init__(self) -> None:
        super().__init__("outlet")
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None  # None too when it was completed before its end

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        if self._is_running:
            self._order(self._jobs.append, Job(post, generation, plan))
        else:
            self._refuse(post)

    def cancel(self, generation: int) -> None:
        self._order(self._cancel, generation)

    def _refuse(self, post: int) -> None:
        self._mailbox.tell(Posted(post, False, NO_SUMS))

    # -- on the thread ----------------------------------------------------------------------

    @abstractmethod
    def _carry_out(self, job: Job) -> Checksums | None:
        """All of the job. None: not all of it went out."""

    @abstractmethod
    def _call_back(self) -> None:
        """The current job was cancelled: complete it soon."""

    def _turn(self) -> None:
        if not self._jobs:
            self._wait()
            return
        self._current = self._jobs.popleft()
        self._complete(self._carry_out(self._current))

    def _complete(self, sums: Checksums | None) -> None:
        """The current job's pages are not read any more. Only the first call of a job counts."""
        if self._current is not None:
            is_ok = sums is not None
            self._mailbox.tell(Posted(self._current.post, is_ok, NO_SUMS if sums is None else sums))
            self._current = None

    def _cancel(self, generation: int) -> None:
        for job in [job for job in self._jobs if job.generation == generation]:
            self._jobs.remove(job)
            self._refuse(job.post)
        if self._current is not None and self._current.generation == generation:
            self._call_back()

    def _leave(self) -> None:
        self._mailbox.take_orders()
        for job in self._jobs:
            self._refuse(job.post)
