"""Keeps the processes of one cluster running: starts, watches, restarts, fences and stops them.

    start router -> start workers -> ready -> watch | fence -> stop

    watch: a dead process is restarted, a worker under a new epoch
    fence: see `twolane.deploy.launch.fencing`

Agents keep processes running without a launcher. A supervisor that finds its cluster running there
attaches to it: it adopts each process that runs and starts the others, and a failure of the
supervisor ends no process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.controller.seats import Inventory, number_of
from twolane.deploy.errors import DeposedError, NotProvenError, StartError, first_error
from twolane.deploy.launch.events import Event, Kind, News
from twolane.deploy.launch.fencing import Fencing, FencingConfig
from twolane.deploy.launch.from_cluster import first_desired, inventory_of
from twolane.deploy.launch.keeper import Keeper, KeeperConfig, beside_first
from twolane.deploy.launch.launcher import Hosts, Launcher
from twolane.deploy.launch.operator_acts import OperatorActs, fit_of
from twolane.deploy.launch.pools import Actuators, Pools
from twolane.deploy.launch.restart import RestartConfig
from twolane.deploy.launch.router_clients import Asked, RouterClients
from twolane.deploy.launch.stopping import stop_in_order, stop_on_hosts, until_set
from twolane.deploy.process.handshake import Handle
from twolane.deploy.scaling.for_cluster import scaler_for
from twolane.deploy.scaling.live_settings import LiveScalerSettings
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.v1 import cluster_pb2

ALIVE = "alive"  # a value of WorkerStatus.state


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """`stop_margin_s`: a process that still runs this long after its grace period is killed."""

    restart: RestartConfig = field(default_factory=RestartConfig)
    fencing: FencingConfig = field(default_factory=FencingConfig)
    ready_timeout_s: float = 60.0
    ready_poll_s: float = 0.05
    stop_margin_s: float = 3.0
    loading_poll_s: float = 1.0


class Supervisor:
    """One cluster. Call `run` once. `tell` is called with every event, on the event loop. If
    `log_dir` is given, where the launcher's processes write `<name>.log`, their progress of loading
    is reported too. `hosts`: those of a launcher for several hosts. `attaches`: processes of this
    cluster run already. `inventory` and `desired`: what there is room for, and what the cluster
    is to be; None: as `cluster` says."""

    def __init__(
        self,
        cluster: ClusterSpec,
        launcher: Launcher,
        tell: Callable[[Event], None],
        config: SupervisorConfig | None = None,
        *,
        log_dir: Path | None = None,
        hosts: Hosts | None = None,
        attaches: bool = False,
        inventory: Inventory | None = None,
        desired: Desired | None = None,
    ) -> None:
        self._attaches = attaches
        self._hosts = hosts
        self._cluster = cluster
        self._launcher = launcher
        self._tell = tell = partial(self._tell_routers_too, tell)
        self._config = config or SupervisorConfig()
        self._who = (secrets.token_hex(8), 0) if hosts is None else hosts.controller
        self._news = News(f"controller-{self._who[0][:8]}")
        self.is_up = False  # from then on, a failure ends no process
        self._ready: Event | None = None  # to be told once routers hear this controller
        self._heard_by = 0.0  # when they are to have heard it
        self._routers: list[RouterSpec] = cluster.routers()
        self._endpoints: list[str] = []  # of the routers, for workers
        self._late: list[list[RouterSpec]] = []  # the routers of each silent host
        self._pools = Pools(
            inventory or inventory_of(cluster), desired or first_desired(cluster), self._save, tell
        )
        self._scaler = scaler_for(cluster, self._pools.inventory, self._scaled)
        self._settings = LiveScalerSettings(cluster, self._scaler, partial(self._scaled, ""))
        self._pools.inventory = self._settings.hold_kept(
            self._pools.inventory, dict(self._pools.desired.config)
        )
        self.acts = OperatorActs(
            self._pools, tell, self.fence, self._scaler, self._settings,
            fit_of=partial(fit_of, cluster, self._pools, hosts), read_log=launcher.read_log,
        )  # fmt: skip
        self._keeper = Keeper(
            launcher,
            tell,
            KeeperConfig(restart=self._config.restart, loading_poll_s=self._config.loading_poll_s),
            is_wanted=self._is_wanted,
            proven_dead=lambda epoch: self._fencing.proven_dead(epoch),
            log_dir=log_dir,
        )
        its, bounds = self._keeper, self._config.fencing
        self._fencing = Fencing(bounds, launcher, its.workers, tell, hosts, its.routers)

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Run the cluster until `stop` is set; `hurry` ends the grace period early.

        Raises `StartError` if it does not start, `DeposedError` if another controller has taken
        over, and `NotProvenError` if something may still run after a stop. However this ends, no
        process that this launcher started is left running on this machine. On `hosts`, only `stop`
        ends a cluster that is up.
        """
        try:
            await self._until_stopped(stop)
            self._tell(Event(kind=Kind.STOPPING))
            await self._stop(hurry)
        finally:
            await self._launcher.close()
        if self._hosts is not None and self._hosts.left:
            raise NotProvenError(self._hosts.left)
        self._tell(Event(kind=Kind.STOPPED))

    async def _until_stopped(self, stop: asyncio.Event) -> None:
        try:
            await until_set(stop, self._bring_up())
        except StartError:
            if not stop.is_set():
                raise

    async def _bring_up(self) -> None:
        """Start the cluster, and keep it up until cancelled. Raises `DeposedError`, and
        `StartError` if it does not start, or if no router hears this controller of a new cluster in
        time."""
        if self._hosts is not None:
            self._hosts.want({seat.host for seat in self._pools.desired.seats})
        routers = await self._start_routers()
        router = routers[0]
        self._endpoints = [its.worker_endpoint for its in routers]
        async with RouterClients(routers, self._cluster.credentials) as client:
            if not self._attaches:
                desired = self._pools.desired
                wanted = [seat for seat in desired.seats if desired.is_wanted(seat.name)]
                specs = [self._spec_of(seat) for seat in wanted]
                await self._unless_exit(self._start_all(specs))
                await self._unless_exit(self._until_ready(client))
            self.is_up = True
            if self._hosts is not None:
                self._hosts.outlive()
            self._ready = Event(
                kind=Kind.READY,
                endpoint=router.endpoint,
                http=router.http_endpoint,
                admin=router.admin_endpoint,
            )
            self._heard_by = asyncio.get_running_loop().time() + self._config.ready_timeout_s
            await self._keep_all(client)

    async def fence(self, worker_id: str, epoch: int = 0) -> str:
        """Kill this epoch of a worker (0: any), which is then restarted, and return the proof of
        its death for display. Raises `NotProvenError` with the reason if there is no proof."""
        handle = self._keeper.running.get(worker_id)
        if handle is None or not handle.epoch:
            names = ", ".join(its.name for its in self._keeper.workers())
            raise NotProvenError(f"no worker {worker_id} is running; the workers are {names}")
        if epoch not in (0, handle.epoch):  # guard: another epoch
            raise NotProvenError(f"epoch {epoch:016x} of {worker_id} is not running any more")
        await self._launcher.fence(handle)
        how = await self._launcher.wait_exit(handle)
        return f"{worker_id} {how}" + " (proof of class A)" * (self._hosts is None)

    async def say_off(self, host_name: str) -> str:
        """Accept an operator's statement that a host is switched off. Raises `NotProvenError`."""
        if self._hosts is None:
            raise NotProvenError("this cluster runs on one machine: fence its workers instead")
        return await self._hosts.say_off(host_name)

    async def _start_routers(self) -> list[Handle]:
        """Start all routers. If the supervisor attaches, `_keep_late` starts those of a silent
        host; raises `StartError` if all hosts are silent."""
        hosts: dict[str, list[RouterSpec]] = {}
        for spec in self._routers:
            hosts.setdefault(spec.host_name, []).append(spec)
        try:
            async with asyncio.TaskGroup() as group:
                starts = [group.create_task(self._start_on_host(its)) for its in hosts.values()]
        except* (StartError, DeposedError) as errors:
            raise first_error(errors) from None
        silent = [str(error) for start in starts if (error := start.result())]
        if silent and (len(silent) == len(hosts) or not self._attaches):
            raise StartError("; ".join(silent))
        running = self._keeper.running
        return [running[its.name] for its in self._routers if its.name in running]

    async def _start_on_host(self, specs: list[RouterSpec]) -> StartError | None:
        """Start the host's first router, then the others at its ports. Returns why the first did
        not start."""
        try:
            first = await self._keeper.start(specs[0])
        except StartError as error:
            self._late.append(specs)
            return error
        await self._start_all(beside_first(first, specs[1:]))
        return None

    async def _keep_late(self, specs: Sequence[RouterSpec], client: RouterClients) -> None:
        """Start the routers of a silent host when it answers, and keep them running."""
        first = await self._keeper.first_start(specs[0])
        await client.add(first)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keeper.keep(self._keeper.specs[first.name]))
            for spec in beside_first(first, specs[1:]):
                group.create_task(self._keep_added(spec, client))

    async def _keep_added(self, spec: RouterSpec, client: RouterClients) -> None:
        handle = await self._keeper.first_start(spec)
        await client.add(handle)
        await self._keeper.keep(self._keeper.specs[spec.name])

    def _spec_of(self, seat: Seat) -> WorkerSpec:
        return self._cluster.worker(
            seat.pool,
            number_of(seat),
            self._endpoints,
            host_name=seat.host,
            devices=seat.devices,
            name=seat.name,
            roles=seat.roles,
            model_dir=seat.model_dir,
            fingerprint=self._pools.desired.fingerprint(seat.model_dir),
        )

    def _is_wanted(self, name: str) -> bool:
        """Whether that process is to be started again when it dies."""
        return self._pools.is_wanted(name) or any(spec.name == name for spec in self._routers)

    def _tell_routers_too(self, tell: Callable[[Event], None], event: Event) -> None:
        if event.kind is Kind.DIED and self._scaler is not None:
            self._scaler.start_failed(event.name, asyncio.get_running_loop().time())
        self._news.note(event)
        tell(event)

    async def _save(self, desired: Desired) -> None:
        """Raises `RefusedError`."""
        if self._hosts is not None:
            await self._hosts.save(desired)

    async def _start_all(self, specs: Sequence[ProcessSpec]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(self._keeper.start(spec))
        except* (StartError, DeposedError) as errors:
            raise first_error(errors) from None

    async def _until_ready(self, client: RouterClients) -> None:
        """Wait until the health service reports SERVING and all routers call every worker alive."""
        expected = {handle.epoch for handle in self._keeper.workers()}
        missing = expected
        try:
            async with asyncio.timeout(self._config.ready_timeout_s):
                while missing or not await client.is_serving():
                    await asyncio.sleep(self._config.ready_poll_s)
                    missing = expected - await client.known_to_all(ALIVE)
        except TimeoutError:
            names = [handle.name for handle in self._keeper.workers() if handle.epoch in missing]
            raise StartError(
                f"not ready after {self._config.ready_timeout_s:g} s; the router does not see "
                f"{', '.join(names) or 'itself as serving'}"
            ) from None

    async def _unless_exit(self, work: Coroutine[None, None, None]) -> None:
        """Await `work`. Raises `StartError` if a process that runs now dies meanwhile."""
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [
                    group.create_task(self._fail_on_exit(h)) for h in self._keeper.handles()
                ]
                if self._hosts is not None:
                    watchers.append(group.create_task(self._hosts.watch()))
                await work
                for watcher in watchers:
                    watcher.cancel()
        except* (StartError, DeposedError) as errors:
            raise first_error(errors) from None

    async def _fail_on_exit(self, handle: Handle) -> None:
        raise StartError(f"{handle.name} {await self._launcher.wait_exit(handle)}")

    async def _keep_all(self, client: RouterClients) -> None:
        """Raises as `_bring_up`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._hosts is not None:
                    tasks.create_task(self._hosts.watch())
                for name, spec in list(self._keeper.specs.items()):
                    if isinstance(spec, RouterSpec):
                        tasks.create_task(self._keeper.keep(spec), name=f"keep-{name}")
                for late in self._late:
                    tasks.create_task(self._keep_late(late, client))
                self._pools.keep_all(
                    Actuators(
                        keeper=self._keeper,
                        launcher=self._launcher,
                        hosts=self._hosts,
                        client=client,
                        tasks=tasks,
                        spec_of=self._spec_of,
                        grace_s=self._cluster.timing.stop_grace_s,
                    )
                )
                while True:
                    await self._look(client, tasks)
                    await self._pools.pause(self._config.fencing.poll_s)
        except* (StartError, DeposedError) as errors:
            raise first_error(errors) from None

    async def _look(self, client: RouterClients, tasks: asyncio.TaskGroup) -> None:
        """Tell routers what is known here, learn what they know, and act on it."""
        hosts, now = self._fencing.hosts(), asyncio.get_running_loop().time()
        for host in hosts:
            self._pools.show_in(host)
        report = cluster_pb2.SuperviseRequest(
            hosts=hosts,
            pools=self._pools.status(),
            roles=self._pools.wishes(),
            controller_id=self._who[0],
            term=self._who[1],
            events=self._news.to_tell(),
            config=self._pools.config(self._settings.fields()),
            scaler=None if (its := self._scaler) is None else its.status(now, self._pools.desired),
            rollout=self._pools.rollout(),
            counters=self._keeper.counters | (self._hosts.counters if self._hosts else Counter()),
            lost=self._hosts.lost if self._hosts else (),
        )
        seen = await client.supervise(report)
        if self._hosts is not None:
            self._hosts.proven(seen.proven)
        if seen.has_heard:
            self._news.heard()
        else:
            self._news.tell_again()
        await self._fencing.look(client, seen.workers, tasks, seen.answering, seen.silent)
        await self._pools.look(seen.workers, hosts, seen.everywhere)
        if self._scaler is not None:
            self._scaler.note(now, seen.workers, seen.traffic)
            if self._scaler.is_due(now):
                await self._pools.decide(partial(self._scaler.step, now))
        for asked in seen.asked:
            tasks.create_task(self._answer(asked))
        if self._ready is not None:
            if seen.has_heard:
                self._tell(self._ready)
                self._ready = None
            elif not self._attaches and now >= self._heard_by:
                raise StartError(
                    f"not ready after {self._config.ready_timeout_s:g} s; no router takes this "
                    "controller's reports"
                )

    def _scaled(self, name: str, text: str) -> None:
        self._tell(Event(kind=Kind.SCALED, name=name or "scaler", text=text))

    async def _answer(self, asked: Asked) -> None:
        asked.of.answer(await self.acts.do(asked.act))
        self._pools.wake()

    async def _stop(self, hurry: asyncio.Event) -> None:
        """Stop the routers first, so that running answers end, and then the workers. All share one
        grace period: answers have ended with the routers."""
        if self._hosts is not None:
            await self._hosts.ends()
        grace_s = self._cluster.timing.stop_grace_s
        if self.is_up or self._hosts is None:
            await stop_in_order(
                self._launcher,
                (self._keeper.routers(), self._keeper.workers()),
                grace_s=grace_s,
                margin_s=self._config.stop_margin_s,
                hurry=hurry,
                tell=self._tell,
            )
        if self._hosts is not None:
            await stop_on_hosts(self._hosts, grace_s=grace_s, hurry=hurry)
