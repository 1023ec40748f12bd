"""`async with serving(spec) as where`: one router or worker, serving inside the block.

Leaving the block ends it in order: answers that run get `stop_grace_s`. If it breaks meanwhile, the
block is cancelled and what broke it is raised. A worker that cannot end in time, since a step
hangs, ends the process. A worker's packages are imported only for a worker: a router loads no
torch.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from twolane.deploy.errors import StartError, first_error
from twolane.deploy.process.descriptors import (
    UnfitSystemError,
    count_open,
    raise_limit,
    share,
)
from twolane.deploy.process.orphan import end_as_orphan
from twolane.deploy.spec.listeners import check, check_admin_port
from twolane.deploy.spec.settings import DECODE
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.rpc.listen import ListenError, unreachable

if TYPE_CHECKING:
    from twolane.kvtransfer.transport import Landing
    from twolane.router.router import Router
    from twolane.worker.doors.server import WorkerServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Where:
    """host:port of gRPC, of the metrics, and of a router's doors for workers and for HTTP;
    unix:PATH of its door for operators; what a worker's engine computes on and in."""

    endpoint: str
    metrics_endpoint: str
    worker_endpoint: str = ""
    runs_on: str = ""
    http_endpoint: str = ""
    admin_endpoint: str = ""
    admin_port_endpoint: str = ""  # host:port of its door for operators of other machines


_SWITCH_S = 100e-6  # a step is ten milliseconds: with Python's five, threads wait for each other
_END_S = 12.0  # for a worker's last words and step, and for its ranks to exit


@asynccontextmanager
async def serving(spec: ProcessSpec) -> AsyncIterator[Where]:
    """See the module. Raises `StartError` if it cannot start."""
    sys.setswitchinterval(_SWITCH_S)
    try:
        limit = raise_limit()
    except UnfitSystemError as error:
        raise StartError(str(error)) from error
    try:
        check(spec)
        check_admin_port(spec)  # over agents, nothing has until now
    except ListenError as error:
        raise StartError(str(error)) from error
    block = _serving_router(spec, limit) if isinstance(spec, RouterSpec) else _serving_worker(spec)
    try:
        async with block as where:
            settle_memory()
            yield where
    except* StartError as errors:
        raise first_error(errors) from None


def settle_memory() -> None:
    """What was loaded stays: the collector never looks at it again, and at the rest less often.

    Otherwise it stops a router for 25 to 45 ms each second under load, and all answers with it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@asynccontextmanager
async def _serving_router(spec: RouterSpec, limit: int) -> AsyncIterator[Where]:
    from twolane.deploy.process.compose_router import (
        grpc_door_config,
        http_config,
        router_config,
        store_config,
    )
    from twolane.deploy.process.live_settings import LiveSettings
    from twolane.deploy.process.otlp import traces_to
    from twolane.router.config import ServerConfig
    from twolane.router.doors.server import RouterServer
    from twolane.router.members.dialer import GrpcDialer
    from twolane.router.text.codec import TextCodec
    from twolane.router.text.model_files import ModelFilesError
    from twolane.security.key_file import KeyFile
    from twolane.security.keys import KeyFileError

    if why := unreachable(spec.bind_host, spec.advertise_host, ()):
        raise StartError(why)
    shares, settings = share(limit, count_open()), spec.settings
    place = ServerConfig(
        host=settings.host,
        port=settings.port,
        bind_host=spec.bind_host,
        advertise_host=spec.advertise_host,
        ports=spec.ports,
        worker_port=settings.worker_port,
        metrics_port=settings.metrics_port,
        admin_socket=spec.admin_socket,
        admin_port=settings.admin_port,
        shares_ports=spec.shares_ports,
        grpc=grpc_door_config(shares),
        http=http_config(spec, shares),
        stop_grace_s=spec.timing.stop_grace_s,
        credentials=spec.credentials,
    )
    async with AsyncExitStack() as stack:
        dialer = await stack.enter_async_context(GrpcDialer(spec.credentials))
        try:
            config, text = router_config(spec), TextCodec.load(spec.model.model_dir)
            keys = KeyFile(Path(settings.keys)) if settings.keys else None
        except (KeyFileError, ModelFilesError) as error:
            raise StartError(str(error)) from error
        store = None
        if (shared := store_config(spec)) is not None:
            from twolane.router.shared.redis_store import RedisStore

            store = await stack.enter_async_context(
                RedisStore(shared, config.router_id, config.epoch)
            )
        traces = await stack.enter_async_context(
            traces_to(settings.otlp_endpoint, config.router_id)
        )
        try:
            server = RouterServer(
                config, place, dialer, text,
                keys=keys, store=store, traces=traces, options=partial(LiveSettings, spec, keys),
            )  # fmt: skip
            await stack.enter_async_context(server)
        except ListenError as error:
            raise StartError(str(error)) from error
        async with asyncio.TaskGroup() as tasks:
            rule = end_as_orphan(
                spec.state_dir, spec.timing.orphan_s, partial(_heard_at, server.router)
            )
            watch = tasks.create_task(rule, name="orphan")
            yield Where(
                server.address,
                server.metrics_address,
                worker_endpoint=server.worker_address,
                http_endpoint=server.http_address,
                admin_endpoint=server.admin_address,
                admin_port_endpoint=server.admin_port_address,
            )
            watch.cancel()


@asynccontextmanager
async def _serving_worker(spec: WorkerSpec) -> AsyncIterator[Where]:
    from twolane.deploy.process.compose_worker import (
        build_worker,
        on_device,
        ready_limits,
        transport_config,
    )
    from twolane.deploy.process.engine_host import open_engine
    from twolane.kvtransfer.device import DeviceError
    from twolane.kvtransfer.transports.registry import open_landings
    from twolane.worker.doors.server import WorkerServer
    from twolane.worker.metrics import WorkerMetrics
    from twolane.worker.peers.links import PeerDialer

    if why := unreachable(spec.bind_host, spec.advertise_host, spec.routers):
        raise StartError(why)
    is_shared = DECODE in spec.able and "shm" in spec.settings.transports
    async with AsyncExitStack() as stack:
        end_within = stack.enter_context(_bounded_end())
        ready = ready_limits(spec)
        power = stack.enter_context(
            open_engine(on_device(spec), name=spec.name, is_shared=is_shared, ready=ready)
        )
        pages, config = power.pages, transport_config(spec)
        landings: dict[str, Landing] = {}
        if DECODE in spec.able and pages is not None:
            try:
                landings = open_landings(spec.epoch, pages, config, power.memory)
            except (DeviceError, ListenError) as error:
                raise StartError(str(error)) from error
            except OSError as error:
                text = f"cannot listen on {spec.bind_host} (--bind-host): {error}"
                raise StartError(text) from error
        for landing in landings.values():
            stack.callback(landing.close)
        dialer, metrics = PeerDialer(spec.credentials), WorkerMetrics()
        stack.push_async_callback(dialer.close)
        worker = build_worker(spec, power, pages, dialer, landings, metrics)
        server = WorkerServer(worker, metrics)
        async with asyncio.TaskGroup() as tasks:
            grace_s = 0.0
            try:
                tasks.create_task(_run(server), name="server")
                watch = tasks.create_task(power.watch(), name="engine")
                await server.started.wait()
                rule = end_as_orphan(spec.state_dir, spec.timing.orphan_s, server.heard_at)
                orphan = tasks.create_task(rule, name="orphan")
                yield Where(worker.endpoint, server.metrics_endpoint, runs_on=power.runs_on)
                watch.cancel()
                orphan.cancel()
                server.stop()
                grace_s = spec.timing.stop_grace_s
            finally:
                end_within(grace_s + _END_S)


@contextmanager
def _bounded_end() -> Iterator[Callable[[float], None]]:
    """`end_within(seconds)`, to be called when the block should be left: if it is still open then,
    the process ends.

    A step that hangs keeps its thread, and Python waits for its threads before it exits. Nothing
    that the step may still use can be freed under it; the end of the process ends both at once.
    """
    with ExitStack() as stack:

        def end_within(bound_s: float) -> None:
            timer = threading.Timer(bound_s, _end_process, (bound_s,))
            timer.name, timer.daemon = "end", True
            timer.start()
            stack.callback(timer.cancel)

        yield end_within


def _end_process(bound_s: float) -> None:
    log.error("it could not end within %g s, as when a step hangs: the process ends", bound_s)
    os._exit(1)


def _heard_at(router: Router) -> float | None:
    """When a worker was last heard, in the event loop's time; None: there is none."""
    ages_s = [worker.last_heard_s for worker in router.status(with_requests=False).workers]
    return asyncio.get_running_loop().time() - min(ages_s) if ages_s else None


async def _run(server: WorkerServer) -> None:
    from twolane.worker.errors import DisplacedError

    try:
        await server.run()
    except* ListenError as errors:
        raise StartError(str(first_error(errors))) from errors
    except* DisplacedError as errors:
        raise StartError(str(first_error(errors))) from errors
