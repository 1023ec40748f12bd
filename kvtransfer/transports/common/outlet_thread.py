"""Base of outlets that have a thread: runs posts one after the other and completes each once."""

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
    """A post, as the thread carries it out."""

    post: int
    generation: int
    plan: CopyPlan


class OutletThread(TransportThread[Posted]):
    """See `Outlet`. A subclass carries out jobs and cancels the one that is running."""

    def __init__(self) -> None:
        super().__init__("outlet")
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None  # None also when it was completed early, by a cancel

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
        """Send all of the job. Returns its checksums; None if not all of it was sent."""

    @abstractmethod
    def _call_back(self) -> None:
        """The current job was cancelled: complete it soon, sent or not."""

    def _turn(self) -> None:
        if not self._jobs:
            self._wait()
            return
        self._current = self._jobs.popleft()
        self._complete(self._carry_out(self._current))

    def _complete(self, sums: Checksums | None) -> None:
        """The current job no longer reads its pages. Repeated calls for one job are ignored."""
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
