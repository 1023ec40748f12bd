"""Keeps processes running: starts each, watches it, and starts it again when it dies, for as long
as it is wanted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Launcher
from twolane.deploy.launch.load_progress import tell_loading
from twolane.deploy.launch.restart import RestartConfig, RestartPolicy
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import beside
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperConfig:
    restart: RestartConfig = field(default_factory=RestartConfig)
    loading_poll_s: float = 1.0


class Keeper:
    """`running` has the processes that serve, by name. `is_wanted` says whether a process that has
    died is to be started again; `proven_dead` is called with each epoch that has ended. `counters`
    has `failed_starts` and `deaths` of workers, by pool; `failed` has why the last incarnation of
    one that is being started has died or did not start."""

    def __init__(
        self,
        launcher: Launcher,
        tell: Callable[[Event], None],
        config: KeeperConfig,
        *,
        is_wanted: Callable[[str], bool],
        proven_dead: Callable[[int], None],
        log_dir: Path | None,
    ) -> None:
        self._launcher = launcher
        self._tell = tell
        self._config = config
        self._is_wanted = is_wanted
        self._proven_dead = proven_dead
        self._log_dir = log_dir
        self.running: dict[str, Handle] = {}
        self.specs: dict[str, ProcessSpec] = {}
        self.ends: dict[str, tuple[int, str]] = {}  # of those that were to end: the epoch, and how
        self.counters: Counter[str] = Counter()
        self.failed: dict[str, str] = {}

    def handles(self) -> list[Handle]:
        return list(self.running.values())

    def workers(self) -> list[Handle]:
        return [h for h in self.handles() if isinstance(self.specs[h.name], WorkerSpec)]

    def routers(self) -> list[Handle]:
        return [h for h in self.handles() if isinstance(self.specs[h.name], RouterSpec)]

    async def start(self, spec: ProcessSpec) -> Handle:
        """Raises `StartError`, `DeposedError`."""
        self._tell(Event(kind=Kind.STARTING, name=spec.name, epoch=spec.epoch))
        loading = asyncio.create_task(self._tell_loading(spec))
        try:
            handle = await self._launcher.start(spec)
        finally:
            loading.cancel()
        self.running[handle.name] = handle
        self.specs[handle.name] = spec
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

    def forget(self, name: str, how: str) -> None:
        """It is proven dead, and has no keeper any more."""
        handle = self.running.pop(name)
        self._proven_dead(handle.epoch)
        self.ends[name] = handle.epoch, how
        self._tell(Event(kind=Kind.ENDED, name=name, epoch=handle.epoch, text=how))

    async def keep(self, spec: ProcessSpec) -> None:
        """Watch one process, and restart it whenever it dies. Start it first if it does not run.
        Returns when it has ended and is not wanted."""
        policy = RestartPolicy(self._config.restart)
        self.failed.pop(spec.name, None)
        handle = self.running.get(spec.name) or await self._try_start(spec)
        while True:
            if handle is None:
                handle = await self._restart(spec, policy)
                if handle is None:
                    return
            clock = asyncio.get_running_loop().time
            began = clock()
            why = await self._launcher.wait_exit(handle)
            if isinstance(spec, RouterSpec):
                policy.served(clock() - began)
            if not self._is_wanted(handle.name):
                self.forget(handle.name, why)
                return
            del self.running[handle.name]
            self._count("deaths", spec)
            self._proven_dead(handle.epoch)
            self.failed[handle.name] = why
            self._tell(Event(kind=Kind.DIED, name=handle.name, epoch=handle.epoch, text=why))
            spec = _at_the_same_ports(self.specs[handle.name], handle)
            handle = None

    async def first_start(self, spec: ProcessSpec) -> Handle:
        """Try until it starts."""
        handle = await self._restart(spec, RestartPolicy(self._config.restart))
        assert handle is not None, f"{spec.name} is not wanted"
        return handle

    async def _restart(self, spec: ProcessSpec, policy: RestartPolicy) -> Handle | None:
        """Try until it starts. None: it is not wanted."""
        while self._is_wanted(spec.name):
            delay_s = policy.delay_s(asyncio.get_running_loop().time())
            text = f"in {delay_s:g} s" if delay_s else "now"
            self._tell(Event(kind=Kind.RESTARTING, name=spec.name, text=text))
            await asyncio.sleep(delay_s)
            if isinstance(spec, WorkerSpec):
                spec = spec.reborn()
            if (handle := await self._try_start(spec)) is not None:
                return handle
        return None

    async def _try_start(self, spec: ProcessSpec) -> Handle | None:
        """Start the process. Reports a failure and returns None if it did not start."""
        try:
            return await self.start(spec)
        except StartError as error:
            self._count("failed_starts", spec)
            self._proven_dead(spec.epoch)
            self.failed[spec.name] = str(error)
            event = Event(kind=Kind.DIED, name=spec.name, epoch=spec.epoch, text=str(error))
            self._tell(event)
            return None

    def _count(self, what: str, spec: ProcessSpec) -> None:
        if isinstance(spec, WorkerSpec):
            self.counters[f"{what}.{spec.pool}"] += 1

    async def _tell_loading(self, spec: ProcessSpec) -> None:
        def tell(text: str) -> None:
            self._tell(Event(kind=Kind.LOADING, name=spec.name, epoch=spec.epoch, text=text))

        if self._log_dir is not None:
            log = self._log_dir / f"{spec.name}.log"
            await tell_loading(log, tell, self._config.loading_poll_s)


def _at_the_same_ports(spec: ProcessSpec, dead: Handle) -> ProcessSpec:
    """The spec to restart: a router keeps the ports that its clients know, a worker takes any."""
    if isinstance(spec, WorkerSpec):
        return spec
    settings = replace(
        spec.settings,
        port=port_of(dead.endpoint),
        worker_port=port_of(dead.worker_endpoint),
        metrics_port=port_of(dead.metrics_endpoint),
        http_port=port_of(dead.http_endpoint) if dead.http_endpoint else None,
    )
    return replace(spec, settings=settings)


def beside_first(first: Handle, specs: Sequence[RouterSpec]) -> list[RouterSpec]:
    """The specs with the ports of `first`, so that all listen there for clients."""
    ports = port_of(first.endpoint), port_of(first.http_endpoint)
    return [beside(spec, *ports) for spec in specs]


def port_of(endpoint: str) -> int:
    """0 of an endpoint that is empty."""
    return int(endpoint.rpartition(":")[2] or 0)
