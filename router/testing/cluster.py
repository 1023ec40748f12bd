"""Scripted workers of one router, connected over memory links, for virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from twolane.router.members.membership import NameTakenError, RetiredEpochError
from twolane.router.testing.rows import ScriptedRow
from twolane.router.testing.worker import DECODE, PREFILL, ScriptedWorker
from twolane.rpc.link import Link, LinkBrokenError
from twolane.testing.links import MemoryLink, link_pair
from twolane.v1 import cluster_pb2, worker_pb2

ROLES = {"p": (PREFILL,), "d": (DECODE,), "b": (PREFILL, DECODE)}


class ScriptedCluster:
    """The workers, and the router's dialer. Once there is a router, set `router_announce` to its
    `announce`."""

    def __init__(self, latency_s: float = 0.0005) -> None:
        self.workers: dict[str, ScriptedWorker] = {}  # the live incarnation, by worker id
        self.everyone: list[ScriptedWorker] = []
        self.router_announce: Callable[[cluster_pb2.AnnounceRequest], Any] | None = None
        self._latency_s = latency_s
        self._last_epoch = 100
        self._tasks: set[asyncio.Task[None]] = set()

    def start_worker(self, worker_id: str, **knobs: Any) -> ScriptedWorker:
        """Start a new incarnation. The id's first letter gives its roles: p, d, or b for both."""
        former = self.workers.get(worker_id)
        if former is not None and not former.is_dead:
            former.kill()  # launchers too run one incarnation at a time
        self._last_epoch += 1
        worker = ScriptedWorker(self, worker_id, self._last_epoch, ROLES[worker_id[0]], **knobs)
        self.workers[worker_id] = worker
        self.everyone.append(worker)
        self._beat(worker)
        return worker

    def announce(self, worker: ScriptedWorker) -> None:
        if self.router_announce is not None and self.peer(worker.address) is worker:
            # refused while the router takes the former incarnation for alive, or for good once this
            # one was reported dead; repeated every second
            with contextlib.suppress(NameTakenError, RetiredEpochError):
                self.router_announce(worker.announce())

    def peer(self, address: worker_pb2.WorkerAddress) -> ScriptedWorker | None:
        """The worker if this very incarnation is alive, else None."""
        worker = self.workers.get(address.worker_id)
        return worker if worker and worker.epoch == address.epoch and not worker.is_dead else None

    def drop_assign(self, row: ScriptedRow) -> None:
        """Remove the row from its decode worker: the first token ended the request."""
        peer = self.peer(row.assign.decode)
        if peer is not None:
            peer.rows.pop(row.key, None)

    async def dial_worker(
        self, address: worker_pb2.WorkerAddress
    ) -> Link[worker_pb2.SessionRequest, worker_pb2.SessionResponse]:
        await asyncio.sleep(self._latency_s)
        worker = self.workers.get(address.endpoint)
        if worker is None or worker.is_dead:
            raise LinkBrokenError("connection refused")
        here: MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
        there: MemoryLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest]
        here, there = link_pair(self._latency_s)
        task = asyncio.get_running_loop().create_task(worker.serve(there))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return here

    def assert_clean(self) -> None:
        """No live worker holds a row."""
        for worker in self.workers.values():
            if not worker.is_dead:
                assert not worker.rows, f"{worker.address.worker_id} holds {list(worker.rows)}"

    def _beat(self, worker: ScriptedWorker) -> None:
        worker.heartbeat()
        worker.later(1.0, self._beat, worker)
