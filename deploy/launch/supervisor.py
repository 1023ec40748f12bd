"""Keeps the processes of one cluster running: starts, watches, restarts, fences, stops.

    start router -> start workers -> ready -> watch | fence -> stop

    watch: a dead process comes back, a worker under a new epoch
    fence: a worker is killed that another wants proven dead, whose step never ends, or of which the
           router hears nothing any more

Whoever is proven dead is reported to the router (`ReportGone`), which frees what it may have been
writing to. Proof is the launcher's word, never a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from twolane.deploy.errors import StartError, first_error
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.launcher import Launcher
from twolane.deploy.launch.load_progress import tell_loading
from twolane.deploy.launch.restart import RestartConfig, RestartPolicy
from twolane.deploy.launch.router_client import RouterClient
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.specs import ClusterSpec, ProcessSpec, WorkerSpec
from twolane.v1 import cluster_pb2

ALIVE, GONE = "alive", "gone"  # words of WorkerStatus.state


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """`stop_margin_s`: a process that is still there so long after its grace is killed.
    `hung_factor`: a worker is, too, whose step takes so many times longer than what is late.
    `lost_s`: and one that the router has called gone, or has not known, for so long."""

    restart: RestartConfig = field(default_factory=RestartConfig)
    ready_timeout_s: float = 60.0
    ready_poll_s: float = 0.05
    fence_poll_s: float = 1.0
    stop_margin_s: float = 3.0
    hung_factor: float = 2.0
    lost_s: float = 30.0
    loading_poll_s: float = 1.0


class Supervisor:
    """One cluster. `run` is called once; `tell` hears every event, on the event loop. In `log_dir`
    the launcher's processes write `<name>.log`: where it is given, what they say of loading is
    told, too."""

    def __init__(
        self,
        cluster: ClusterSpec,
        launcher: Launcher,
        tell: Callable[[Event], None],
        config: SupervisorConfig | None = None,
        *,
        log_dir: Path | None = None,
    ) -> None:
        self._log_dir = log_dir
        self._cluster = cluster
        self._launcher = launcher
        self._tell = tell
        self._config = config or SupervisorConfig()
        self.is_up = False  # from the first READY on
        self._running: dict[str, Handle] = {}
        self._specs: dict[str, ProcessSpec] = {}
        self._dead: set[int] = set()  # every epoch of ours that is proven dead
        self._unreported: set[int] = set()  # those of them that the router may not know of
        self._present_at: dict[int, float] = {}  # when the router last had each running worker

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Keep the cluster up until `stop`; `hurry` cuts the grace short.

        Raises `StartError` if it does not come up. However this ends, nothing is left running.
        """
        try:
            router = await self._start(self._cluster.router())
            async with RouterClient(router, self._cluster.credentials) as client:
                await self._unless_exit(self._start_workers(router.worker_endpoint))
                await self._unless_exit(self._until_ready(client))
                self.is_up = True
                self._tell(
                    Event(
                        kind=Kind.READY,
                        endpoint=router.endpoint,
                        http=router.http_endpoint,
                        admin=router.admin_endpoint,
                    )
                )
                await self._keep_up(client, stop)
            self._tell(Event(kind=Kind.STOPPING))
            await self._stop(hurry)
        finally:
            await self._launcher.close()
        self._tell(Event(kind=Kind.STOPPED))

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

    async def _tell_loading(self, spec: ProcessSpec) -> None:
        def tell(text: str) -> None:
            self._tell(Event(kind=Kind.LOADING, name=spec.name, epoch=spec.epoch, text=text))

        if self._log_dir is not None:
            log = self._log_dir / f"{spec.name}.log"
            await tell_loading(log, tell, self._config.loading_poll_s)

    async def _start_workers(self, worker_endpoint: str) -> None:
        async with asyncio.TaskGroup() as group:
            for spec in self._cluster.workers(worker_endpoint):
                group.create_task(self._start(spec))

    async def _until_ready(self, client: RouterClient) -> None:
        """Health says SERVING and the router calls every worker alive."""
        expected = {handle.epoch for handle in self._workers()}
        missing = expected
        try:
            async with asyncio.timeout(self._config.ready_timeout_s):
                while missing or not await client.is_serving():
                    await asyncio.sleep(self._config.ready_poll_s)
                    members = await client.workers()
                    missing = expected - {m.worker.epoch for m in members if m.state == ALIVE}
        except TimeoutError:
            names = [handle.name for handle in self._workers() if handle.epoch in missing]
            raise StartError(
                f"not ready after {self._config.ready_timeout_s:g} s; the router does not see "
                f"{', '.join(names) or 'itself as serving'}"
            ) from None

    async def _unless_exit(self, work: Coroutine[None, None, None]) -> None:
        """Do `work`; a process that runs now and dies meanwhile makes it fail. `StartError`."""
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(self._fail_on_exit(h)) for h in self._handles()]
                await work
                for watcher in watchers:
                    watcher.cancel()
        except* StartError as errors:
            raise first_error(errors) from None

    async def _fail_on_exit(self, handle: Handle) -> None:
        raise StartError(f"{handle.name} {await self._launcher.wait_exit(handle)}")

    async def _keep_up(self, client: RouterClient, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep(handle)) for handle in self._handles()]
            tasks.append(group.create_task(self._report_and_fence(client)))
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def _keep(self, handle: Handle) -> None:
        """Watch one process, and bring it back whenever it dies."""
        policy = RestartPolicy(self._config.restart)
        while True:
            why = await self._launcher.wait_exit(handle)
            del self._running[handle.name]
            self._proven_dead(handle.epoch)
            self._tell(Event(kind=Kind.DIED, name=handle.name, epoch=handle.epoch, text=why))
            handle = await self._restart(handle, policy)

    async def _restart(self, dead: Handle, policy: RestartPolicy) -> Handle:
        while True:
            delay_s = policy.delay_s(asyncio.get_running_loop().time())
            text = f"in {delay_s:g} s" if delay_s else "now"
            self._tell(Event(kind=Kind.RESTARTING, name=dead.name, text=text))
            await asyncio.sleep(delay_s)
            spec = _next_incarnation(self._specs[dead.name], dead)
            try:
                return await self._start(spec)
            except StartError as error:
                self._proven_dead(spec.epoch)
                event = Event(kind=Kind.DIED, name=spec.name, epoch=spec.epoch, text=str(error))
                self._tell(event)

    def _proven_dead(self, epoch: int) -> None:
        if epoch:
            self._dead.add(epoch)
            self._unreported.add(epoch)

    async def _report_and_fence(self, client: RouterClient) -> None:
        """Kill whom a worker wants proven dead, and tell the router who is."""
        while True:
            await asyncio.sleep(self._config.fence_poll_s)
            # what is gone says nothing any more: its last report is old
            told = await client.workers()
            members = [m for m in told if m.state != GONE]
            wanted = {epoch for member in members for epoch in member.load.fence_wanted}
            self._unreported |= wanted & self._dead
            why = dict.fromkeys(wanted, "a peer must know that it writes no more")
            why |= self._hung(members) | self._lost(
                {m.worker.epoch for m in members}, is_news=bool(told)
            )
            for handle in self._workers():
                if (text := why.get(handle.epoch)) is not None:
                    event = Event(kind=Kind.FENCED, name=handle.name, epoch=handle.epoch, text=text)
                    self._tell(event)
                    await self._launcher.fence(handle)  # `_keep` sees its end and reports it
            for epoch in sorted(self._unreported):
                if await client.report_gone(epoch):
                    self._unreported.discard(epoch)

    def _hung(self, members: Sequence[cluster_pb2.WorkerStatus]) -> dict[int, str]:
        """Workers whose step does not end, and that in words."""
        return {
            member.worker.epoch: f"its step has not ended for {member.load.step_age_s:.0f} s"
            for member in members
            if member.load.step_age_s > self._config.hung_factor * member.load.step_bound_s > 0
        }

    def _lost(self, present: set[int], *, is_news: bool) -> dict[int, str]:
        """Workers that run and that the router has long been without, and that in words: they are
        stopped, or stuck in a call that lets no other thread run. A router that is silent itself,
        or has just come back and knows nobody yet, is no news of anybody."""
        now = asyncio.get_running_loop().time()
        running = {handle.epoch for handle in self._workers()}
        seen = running if not is_news else present
        self._present_at = {
            epoch: now if epoch in seen else self._present_at.get(epoch, now) for epoch in running
        }
        return {
            epoch: f"it runs, and the router has been without it for {now - at:.0f} s"
            for epoch, at in self._present_at.items()
            if now - at > self._config.lost_s
        }

    async def _stop(self, hurry: asyncio.Event) -> None:
        """The router first, so that running answers end; then the workers."""
        grace_s = self._cluster.timing.stop_grace_s + self._config.stop_margin_s

        async def stop_all() -> None:
            workers = self._workers()
            for handle in self._handles():
                if handle not in workers:
                    await self._launcher.stop(handle, grace_s)
            async with asyncio.TaskGroup() as group:
                for handle in workers:
                    group.create_task(self._launcher.stop(handle, grace_s))

        stopping = asyncio.create_task(stop_all())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, hurried):
            task.cancel()
        for outcome in await asyncio.gather(stopping, hurried, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    def _handles(self) -> list[Handle]:
        return list(self._running.values())

    def _workers(self) -> list[Handle]:
        return [h for h in self._handles() if isinstance(self._specs[h.name], WorkerSpec)]


def _next_incarnation(spec: ProcessSpec, dead: Handle) -> ProcessSpec:
    """A worker comes back under a new epoch; a router at the ports that everybody knows."""
    if isinstance(spec, WorkerSpec):
        return spec.reborn()
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
