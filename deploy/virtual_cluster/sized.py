"""A virtual cluster that sizes its pools: the real law and its observer, `Pools`, router, workers.

Workers may flip. What they hold is counted from the decision to start one to its proven end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from twolane.deploy.controller.desired import Seat
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.observer import ObserverConfig
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.controller.scaler import Scaler
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.simulator.cluster import Slo
from twolane.deploy.spec.cluster_spec import ClusterSpec, PoolSpec
from twolane.deploy.spec.settings import DECODE, PREFILL, ScalerSettings
from twolane.deploy.spec.specs import ModelSpec
from twolane.deploy.virtual_cluster.cluster import VirtualCluster
from twolane.deploy.virtual_cluster.controlled import ControlledCluster
from twolane.deploy.virtual_cluster.timed import shape
from twolane.engine.config import EngineConfig
from twolane.router.config import AdmissionConfig
from twolane.v1 import cluster_pb2

_LOOK_S = 1.0
_MODEL = ModelSpec(config=EngineConfig(model_dir=Path("none"), model_name="fake"), engine="fake")


@dataclass(slots=True)
class Held:
    """How many workers there are, in whatever state: (time, prefill, decode) at each change."""

    sizes: list[tuple[float, int, int]] = field(default_factory=list)

    def note(self, now: float, prefill: int, decode: int) -> None:
        """So many there are from now on."""
        if not self.sizes or self.sizes[-1][1:] != (prefill, decode):
            self.sizes.append((now, prefill, decode))

    @property
    def most(self) -> int:
        return max(prefill + decode for _, prefill, decode in self.sizes)

    def worker_s(self, until_s: float) -> float:
        """Seconds of all workers, from the first note on."""
        ends = [at_s for at_s, _, _ in self.sizes[1:]] + [until_s]
        return sum(
            (prefill + decode) * max(0.0, min(end_s, until_s) - at_s)
            for (at_s, prefill, decode), end_s in zip(self.sizes, ends, strict=True)
        )


def waits_at(slo: Slo) -> AdmissionConfig:
    """The router's configuration with waits as much longer as this SLO is above the default one:
    steps that take longer let requests wait for longer."""
    product, slower = AdmissionConfig(), slo.ttft_s / ScalerSettings().slo_ttft_s
    return replace(
        product,
        max_wait_s=slower * product.max_wait_s,
        queue_timeout_s=slower * product.queue_timeout_s,
    )


class SizedCluster(ControlledCluster):
    """Made by `sized_cluster`. `deeds` counts the law's actions by kind. `wishes`: at each change,
    which pool each worker is to be of; none for those that are to go."""

    def __init__(
        self, cluster: VirtualCluster, hardware: Hardware, slo: Slo, limits: Limits, start_s: float
    ) -> None:
        roles = {PREFILL: (PREFILL,), DECODE: (DECODE,)}
        seats = [Seat(name=name, pool=name.partition("-")[0]) for name in sorted(cluster.lives)]
        spec = ClusterSpec(
            model=_MODEL,
            pools=tuple(
                PoolSpec(
                    name=name,
                    roles=roles[name],
                    model=_MODEL,
                    n_workers=sum(seat.pool == name for seat in seats),
                    flips=True,
                )
                for name in (PREFILL, DECODE)
            ),
            seats=limits.budget_gpus,
            scaler=ScalerSettings(autoscale=True, budget=limits.budget_gpus),
        )
        super().__init__(cluster, spec, seats, start_s=start_s, look_s=_LOOK_S)
        self.held = Held()
        self.deeds: Counter[str] = Counter()
        self.wishes: list[tuple[float, Mapping[str, str]]] = []
        config = ObserverConfig(ttft_s=slo.ttft_s, gap_s=slo.gap_s)
        self._scaler = Scaler(self.pools.inventory, limits, hardware, config, self._did)

    def report(self) -> cluster_pb2.SuperviseRequest:
        told = super().report()
        now = asyncio.get_running_loop().time()
        told.scaler.CopyFrom(self._scaler.status(now, self.pools.desired))
        return told

    def tell(self, event: Event) -> None:
        super().tell(event)
        if event.kind is Kind.DIED:
            self._scaler.start_failed(event.name, asyncio.get_running_loop().time())

    async def looked(self, told: cluster_pb2.SuperviseResponse) -> None:
        now = asyncio.get_running_loop().time()
        self._scaler.note(now, told.workers, {"router-0": told.traffic})
        if self._scaler.is_due(now):
            await self.pools.decide(partial(self._scaler.step, now))
        desired = self.pools.desired
        pools = [seat.pool for seat in desired.seats]
        self.held.note(now, pools.count(PREFILL), pools.count(DECODE))
        wish = {its.name: its.pool for its in desired.seats if desired.removal(its.name) is None}
        if not self.wishes or self.wishes[-1][1] != wish:
            self.wishes.append((now, wish))

    def _did(self, name: str, text: str) -> None:
        self.deeds[text.split()[0]] += 1


@asynccontextmanager
async def sized_cluster(
    hardware: Hardware, slo: Slo, limits: Limits, *, prefill: int, decode: int, start_s: float
) -> AsyncIterator[SizedCluster]:
    """It begins with so many workers; every task in it is waited for at the end."""
    assert set(limits.pools) == set(Role)
    async with asyncio.TaskGroup() as tasks:
        admission = waits_at(slo)
        cluster = VirtualCluster(shape(hardware, (), admission=admission), tasks, seed=0)
        async with cluster.router:
            for pool, n in ((PREFILL, prefill), (DECODE, decode)):
                for number in range(n):
                    cluster.start(f"{pool}-{number}", f"{pool[0]}+")
            while not cluster.router.can_serve():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
            sized = SizedCluster(cluster, hardware, slo, limits, start_s)
            running = tasks.create_task(sized.run())
            yield sized
            running.cancel()
            await asyncio.wait([running])
            for name in list(cluster.lives):
                await cluster.kill(name)
