"""A virtual cluster with a controller: the real `Pools`, router and workers.

Only processes are doubles: `ControlledCluster` is the launcher, whose processes are the cluster's
workers, and the controller's way to the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.launch.events import Event
from twolane.deploy.launch.from_cluster import inventory_of
from twolane.deploy.launch.keeper import Keeper, KeeperConfig
from twolane.deploy.launch.pools import Actuators, Pools
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.settings import DECODE, PREFILL
from twolane.deploy.spec.specs import WorkerSpec
from twolane.deploy.virtual_cluster.cluster import VirtualCluster
from twolane.errors import TwolaneError
from twolane.v1 import cluster_pb2

_LETTERS = {PREFILL: "p", DECODE: "d"}


class ControlledCluster:
    """Call `run` as a task; it ends when it is cancelled. A start takes `start_s`; a controller
    looks each `look_s`, and sooner while something is to be done."""

    def __init__(
        self,
        cluster: VirtualCluster,
        spec: ClusterSpec,
        seats: Sequence[Seat],
        *,
        start_s: float,
        look_s: float,
    ) -> None:
        """`seats`: of the workers that run already."""
        self.cluster = cluster
        self.events: list[Event] = []
        self._spec = spec
        self._start_s = start_s
        self._look_s = look_s
        self._handles: dict[str, Handle] = {}
        self._ended: dict[int, asyncio.Future[str]] = {}
        self.pools = Pools(inventory_of(spec), Desired(seats=tuple(seats)), self._save, self.tell)

    async def load(self, spec: WorkerSpec) -> None:
        """Called while a worker starts."""

    async def looked(self, told: cluster_pb2.SuperviseResponse) -> None:
        """Called after each look."""

    def report(self) -> cluster_pb2.SuperviseRequest:
        """What routers are told at each look."""
        pools = self.pools
        return cluster_pb2.SuperviseRequest(
            controller_id="c",
            pools=pools.status(),
            roles=pools.wishes(),
            rollout=pools.rollout(),
        )

    def tell(self, event: Event) -> None:
        self.events.append(event)

    # As a launcher

    async def start(self, spec: WorkerSpec) -> Handle:
        if spec.name not in self.cluster.lives:
            await asyncio.sleep(self._start_s)
            await self.load(spec)
            roles = "".join(_LETTERS[role] for role in spec.roles)
            self.cluster.start(spec.name, roles + "+" * spec.flips)
        epoch = self.cluster.lives[spec.name].worker.context.epoch
        self._ended[epoch] = asyncio.get_running_loop().create_future()
        self._handles[spec.name] = Handle(spec.name, epoch, "h:1", "", 1)
        return self._handles[spec.name]

    async def wait_exit(self, handle: Handle) -> str:
        return await asyncio.shield(self._ended[handle.epoch])

    async def stop(self, handle: Handle, grace_s: float) -> None:
        await self.fence(handle)

    async def fence(self, handle: Handle) -> None:
        await self.cluster.kill(handle.name)
        self.cluster.router.operations.report_gone(handle.epoch)
        self._ended[handle.epoch].set_result("ended")

    # As the way to the router

    async def drain(self, request: cluster_pb2.DrainWorkerRequest) -> str:
        operations, name = self.cluster.router.operations, request.worker_id
        try:
            if request.forget:
                operations.forget_drain(name, request.expect_epoch)
            elif request.take_ticket:
                operations.take_ticket(name, request.take_ticket)
            else:
                operations.drain(name, undo=request.undo)
        except TwolaneError as error:
            return error.message
        return ""

    async def _save(self, desired: Desired) -> None:
        pass

    async def run(self) -> None:
        me: Any = self
        keeper = Keeper(
            me,
            self.tell,
            KeeperConfig(),
            is_wanted=self.pools.is_wanted,
            proven_dead=lambda epoch: None,
            log_dir=None,
        )
        async with asyncio.TaskGroup() as tasks:
            actuators = Actuators(
                keeper=keeper, launcher=me, hosts=None, client=me, tasks=tasks,
                spec_of=self._spec_of, grace_s=5.0,
            )  # fmt: skip
            self.pools.keep_all(actuators)
            while True:
                told = self.cluster.router.operations.supervise(self.report())
                alive = {its.worker.epoch for its in told.workers if its.state == "alive"}
                await self.pools.look(list(told.workers), [], alive)
                await self.looked(told)
                await self.pools.pause(self._look_s)

    def _spec_of(self, seat: Seat) -> WorkerSpec:
        return self._spec.worker(
            seat.pool, 0, ("r:1",), host_name="", devices=(), name=seat.name, roles=seat.roles,
            model_dir=seat.model_dir,
        )  # fmt: skip
