"""A virtual cluster under a rollout. Workers of two revisions answer differently, and see each
other's pages as wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.deploy.clusters import model_with
from twolane.deploy.controller.desired import Seat
from twolane.deploy.launch.operator_acts import OperatorActs
from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.deploy.spec.revision import Fit
from twolane.deploy.spec.specs import WorkerSpec
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.deploy.virtual_cluster.controlled import ControlledCluster
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.engine.step import RowResult, RowWork
from twolane.v1 import acts_pb2

OLD, NEW = "/models/old", "/models/new"
START_S, LOOK_S = 2.0, 0.5
STEP = acts_pb2.StepRolloutRequest
_MODEL = model_with(device="cpu", model_dir=OLD, engine="fake")


class CheckedEngine(FakeEngine):
    """Asserts that no batch has a row whose pages another revision has computed: each page has the
    marks of the weights that made it."""

    def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        results = super().run(work)
        for result in results:
            assert not result.error, f"a batch of {self.config.revision}: {result.error}"
        return results


class RollingCluster(ControlledCluster):
    """`begin` and `step` are an operator's acts."""

    def __init__(self, cluster: VirtualCluster, loads: list[str]) -> None:
        """`loads`: the revision that the next worker has."""
        self.bad: set[str] = set()  # revisions that never come up
        self._loads = loads
        seats = [Seat(name=name, pool=name[0]) for name in sorted(cluster.lives)]
        counts = {pool: sum(seat.pool == pool for seat in seats) for pool in "pd"}
        roles = {"p": ("prefill",), "d": ("decode",)}
        pools = [
            PoolSpec(name=pool, roles=roles[pool], model=_MODEL, n_workers=n)
            for pool, n in counts.items()
        ]
        spec = ClusterSpec(model=_MODEL, pools=tuple(pools), seats=len(seats))
        super().__init__(cluster, spec, seats, start_s=START_S, look_s=LOOK_S)
        self.acts = OperatorActs(
            self.pools, self.tell, self._never, fit_of=self._fits, read_log=self._never
        )

    # As an operator

    async def begin(self, canary: float = 0.0) -> None:
        await self._act(
            start_rollout=acts_pb2.StartRolloutRequest(model_dir=NEW, canary_share=canary)
        )

    async def step(self, which: STEP.Step) -> None:
        await self._act(step_rollout=STEP(step=which))

    @property
    def state(self) -> str:
        its = self.pools.rollout()
        return its.state if its is not None else ""

    async def until(self, *states: str, within_s: float = 120.0) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while self.state not in states:
                await asyncio.sleep(0.1)

    async def crash(self, name: str) -> None:
        """Its process dies. It is started again."""
        await self.fence(self._handles[name])

    @property
    def revisions(self) -> dict[str, str]:
        """Of every worker that is there."""
        found = {}
        for name, life in self.cluster.lives.items():
            engine: Any = life.worker.context.engine
            found[name] = engine.config.revision
        return found

    async def load(self, spec: WorkerSpec) -> None:
        if str(spec.model.model_dir) in self.bad:
            await asyncio.Event().wait()
        self._loads[0] = str(spec.model.model_dir)

    async def _fits(self, model_dir: str) -> Fit:
        return Fit()

    async def _never(self, *name: Any) -> Any:
        raise AssertionError(name)

    async def _act(self, **what: Any) -> None:
        result = await self.acts.do(acts_pb2.ControllerAct(number=1, who="anna", **what))
        assert not result.code, result.error


@asynccontextmanager
async def rolling_cluster(
    roles: Sequence[str] = ("p-", "p-", "d-", "d-"), seed: int = 0
) -> AsyncIterator[RollingCluster]:
    """Its workers have the revision OLD."""
    loads = [OLD]

    def make_engine(n_pages: int) -> CheckedEngine:
        return CheckedEngine(FakeEngineConfig(n_pages=n_pages, revision=loads[0]))

    async with virtual_cluster(Shape(roles=roles, make_engine=make_engine), seed) as cluster:
        rolling = RollingCluster(cluster, loads)
        running = asyncio.create_task(rolling.run())
        yield rolling
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()
