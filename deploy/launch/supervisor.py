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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from twolane.deploy.errors import DeposedError, NotProvenError, StartError, first_error
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.fencing import Fencing, FencingConfig
from twolane.deploy.launch.launcher import Hosts, Launcher
from twolane.deploy.launch.load_progress import tell_loading
from twolane.deploy.launch.restart import RestartConfig, RestartPolicy
from twolane.deploy.launch.router_clients import RouterClients
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import ClusterSpec, beside
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec

ALIVE = "alive"  # a word of WorkerStatus.state


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
    cluster run already."""

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
    ) -> None:
        self._log_dir = log_dir
        self._attaches = attaches
        self._hosts = hosts
        self._cluster = cluster
        self._launcher = launcher
        self._tell = tell
        self._config = config or SupervisorConfig()
        self.is_up = False  # from the first READY on
        self._running: dict[str, Handle] = {}
        self._specs: dict[str, ProcessSpec] = {}
        self._fencing = Fencing(self._config.fencing, launcher, self._workers, tell, hosts)

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Run the cluster until `stop` is set; `hurry` ends the grace period early.

        Raises `StartError` if it does not start, and `DeposedError` if another controller has taken
        over. However this returns, no process that this launcher started is left running. The
        exception are `hosts`: there only `stop` ends a cluster that is up.
        """
        try:
            routers = await self._start_routers()
            router = routers[0]
            async with RouterClients(routers, self._cluster.credentials) as client:
                workers = self._cluster.workers(*(its.worker_endpoint for its in routers))
                if not self._attaches:
                    await self._unless_exit(self._start_all(workers))
                    await self._unless_exit(self._until_ready(client))
                self.is_up = True
                if self._hosts is not None:
                    self._hosts.outlive()
                self._tell(
                    Event(
                        kind=Kind.READY,
                        endpoint=router.endpoint,
                        http=router.http_endpoint,
                        admin=router.admin_endpoint,
                    )
                )
                await self._keep_up(client, stop, workers)
            self._tell(Event(kind=Kind.STOPPING))
            await self._stop(hurry)
        finally:
            await self._launcher.close()
        self._tell(Event(kind=Kind.STOPPED))

    async def fence(self, worker_id: str) -> str:
        """Kill a worker, which is then restarted, and return the proof of its death for display.
        Raises `NotProvenError` with the reason if there is no proof."""
        handle = self._running.get(worker_id)
        if handle is None or not handle.epoch:
            names = ", ".join(its.name for its in self._workers())
            raise NotProvenError(f"no worker {worker_id} runs; there are {names}")
        await self._launcher.fence(handle)
        how = await self._launcher.wait_exit(handle)
        return f"{worker_id} {how}" + " (proof of class A)" * (self._hosts is None)

    async def say_off(self, host_name: str) -> str:
        """Accept an operator's statement that a host is switched off. Raises `NotProvenError`."""
        if self._hosts is None:
            raise NotProvenError("this cluster is on one machine: fence its workers")
        return await self._hosts.say_off(host_name)

    async def _start(self, spec: ProcessSpec) -> Handle:
        self._tell(Event(kind=Kind.STARTING, name=spec.name, epoch=spec.epoch))
        loading = asyncio.create_task(self._tell_loading(spec))
        try:
            handle = await self._launcher.start(spec)
        finally:
            loading.cancel()
        self._running[handle.name] = handle
        self._specs[handle.name] = spec
        self._tell(
            Event(
                kind=Kind.STARTED,
                name=handle.name,
                epoch=handle.epoch,
                pid=handle.pid,
                endpoint=handle.endpoint,
                http=handle.http_endpoint,
                admin=handle.admin_endpoint,
                metrics=handle.metrics_endpoint,
                text=handle.runs_on,
            )
        )
        return handle

    async def _start_routers(self) -> list[Handle]:
        """The first of each host, then the others there, at the same ports."""
        specs = self._cluster.routers()
        first: dict[str, RouterSpec] = {}
        for spec in specs:
            first.setdefault(spec.host_name, spec)
        await self._start_all([*first.values()])
        others = []
        for spec in specs:
            if spec is not first[spec.host_name]:
                at = self._running[first[spec.host_name].name]
                others.append(beside(spec, _port(at.endpoint), _port(at.http_endpoint)))
        await self._unless_exit(self._start_all(others))
        return [self._running[spec.name] for spec in specs]

    async def _tell_loading(self, spec: ProcessSpec) -> None:
        def tell(text: str) -> None:
            self._tell(Event(kind=Kind.LOADING, name=spec.name, epoch=spec.epoch, text=text))

        if self._log_dir is not None:
            log = self._log_dir / f"{spec.name}.log"
            await tell_loading(log, tell, self._config.loading_poll_s)

    async def _start_all(self, specs: Sequence[ProcessSpec]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(self._start(spec))
        except* (StartError, DeposedError) as errors:
            raise first_error(errors) from None

    async def _until_ready(self, client: RouterClients) -> None:
        """Wait until the health service reports SERVING and all routers call every worker alive."""
        expected = {handle.epoch for handle in self._workers()}
        missing = expected
        try:
            async with asyncio.timeout(self._config.ready_timeout_s):
                while missing or not await client.is_serving():
                    await asyncio.sleep(self._config.ready_poll_s)
                    missing = expected - await client.known_to_all(ALIVE)
        except TimeoutError:
            names = [handle.name for handle in self._workers() if handle.epoch in missing]
            raise StartError(
                f"not ready after {self._config.ready_timeout_s:g} s; the router does not see "
                f"{', '.join(names) or 'itself as serving'}"
            ) from None

    async def _unless_exit(self, work: Coroutine[None, None, None]) -> None:
        """Await `work`. Raises `StartError` if a process that runs now dies meanwhile."""
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(self._fail_on_exit(h)) for h in self._handles()]
                await work
                for watcher in watchers:
                    watcher.cancel()
        except* (StartError, DeposedError) as errors:
            raise first_error(errors) from None

    async def _fail_on_exit(self, handle: Handle) -> None:
        raise StartError(f"{handle.name} {await self._launcher.wait_exit(handle)}")

    async def _keep_up(
        self, client: RouterClients, stop: asyncio.Event, workers: Sequence[WorkerSpec]
    ) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                specs = [*self._specs.values()]
                specs += [spec for spec in workers if spec.name not in self._specs]
                tasks = [group.create_task(self._keep(spec)) for spec in specs]
                tasks.append(group.create_task(self._fencing.run(client)))
                await stop.wait()
                for task in tasks:
                    task.cancel()
        except* DeposedError as errors:
            raise first_error(errors) from None

    async def _keep(self, spec: ProcessSpec) -> None:
        """Watch one process and restart it whenever it dies. Start it first if it does not run."""
        policy = RestartPolicy(self._config.restart)
        handle = self._running.get(spec.name) or await self._try_start(spec)
        while True:
            if handle is None:
                handle = await self._restart(spec, policy)
            why = await self._launcher.wait_exit(handle)
            del self._running[handle.name]
            self._fencing.proven_dead(handle.epoch)
            self._tell(Event(kind=Kind.DIED, name=handle.name, epoch=handle.epoch, text=why))
            spec = _at_the_same_ports(self._specs[handle.name], handle)
            handle = None

    async def _restart(self, spec: ProcessSpec, policy: RestartPolicy) -> Handle:
        """Restart the process, trying until it starts."""
        while True:
            delay_s = policy.delay_s(asyncio.get_running_loop().time())
            text = f"in {delay_s:g} s" if delay_s else "now"
            self._tell(Event(kind=Kind.RESTARTING, name=spec.name, text=text))
            await asyncio.sleep(delay_s)
            if isinstance(spec, WorkerSpec):
                spec = spec.reborn()
            if (handle := await self._try_start(spec)) is not None:
                return handle

    async def _try_start(self, spec: ProcessSpec) -> Handle | None:
        """Start the process. Reports a failure and returns None if it did not start."""
        try:
            return await self._start(spec)
        except StartError as error:
            self._fencing.proven_dead(spec.epoch)
            event = Event(kind=Kind.DIED, name=spec.name, epoch=spec.epoch, text=str(error))
            self._tell(event)
            return None

    async def _stop(self, hurry: asyncio.Event) -> None:
        """Stop the routers first, so that running answers end, and then the workers."""
        grace_s = self._cluster.timing.stop_grace_s + self._config.stop_margin_s

        async def stop_all() -> None:
            workers = self._workers()
            routers = [handle for handle in self._handles() if handle not in workers]
            for handles in (routers, workers):
                async with asyncio.TaskGroup() as group:
                    for handle in handles:
                        group.create_task(self._stop_one(handle, grace_s))

        stopping = asyncio.create_task(stop_all())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, hurried):
            task.cancel()
        for outcome in await asyncio.gather(stopping, hurried, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _stop_one(self, handle: Handle, grace_s: float) -> None:
        try:
            await self._launcher.stop(handle, grace_s)
        except NotProvenError as error:
            text = f"it may still run: {error}"
            self._tell(Event(kind=Kind.LOST, name=handle.name, epoch=handle.epoch, text=text))

    def _handles(self) -> list[Handle]:
        return list(self._running.values())

    def _workers(self) -> list[Handle]:
        return [h for h in self._handles() if isinstance(self._specs[h.name], WorkerSpec)]


def _at_the_same_ports(spec: ProcessSpec, dead: Handle) -> ProcessSpec:
    """The spec to restart: a router keeps the ports that its clients know, a worker takes any."""
    if isinstance(spec, WorkerSpec):
        return spec
    settings = replace(
        spec.settings,
        port=_port(dead.endpoint),
        worker_port=_port(dead.worker_endpoint),
        metrics_port=_port(dead.metrics_endpoint),
        http_port=_port(dead.http_endpoint) if dead.http_endpoint else None,
    )
    return replace(spec, settings=settings)


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2] or 0)
