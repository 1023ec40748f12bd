"""The hosts of a cluster in Kubernetes, for the controller's whole life."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from twolane.deploy.agent.made_hosts import MadeHosts
from twolane.deploy.errors import StartError
from twolane.deploy.kubernetes.api import ApiConfig, ApiError, KubernetesApi, UnreachableError
from twolane.deploy.kubernetes.executor import Executor, ExecutorConfig, agents_now
from twolane.deploy.kubernetes.keda import ExternalScaler, serve
from twolane.deploy.kubernetes.lease import ControllerLease, LeaseConfig
from twolane.deploy.spec.cluster_spec import ClusterSpec
from twolane.deploy.spec.host_sets import KubernetesOptions
from twolane.rpc.listen import bare, host_of


class KubernetesHosts:
    """An async context manager, which lasts as long as this controller is to be the one that acts:
    it waits for the Lease. `broken` is called with an error after which pods are not kept any
    more."""

    def __init__(
        self,
        options: KubernetesOptions,
        config: ApiConfig,
        broken: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._api = KubernetesApi(config)
        self._broken = broken
        self._lease = ControllerLease(self._api, LeaseConfig(name=options.lease))
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises `StartError`."""
        await self._api.__aenter__()
        try:
            await self._lease.acquire()
        except BaseException:
            await self._api.__aexit__(None, None, None)
            raise
        self._renewing = asyncio.create_task(self._lease.keep(), name="lease")
        self._renewing.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        await self._lease.release()
        await self._api.__aexit__(kind, error, trace)

    async def located(self, cluster: ClusterSpec) -> ClusterSpec:
        """The cluster with the addresses of pods that run. Raises `StartError`."""
        names = {host.name for host in cluster.hosts if host.made is not None}
        try:
            agents = await agents_now(self._api, names, self._options.agent_port)
        except (ApiError, UnreachableError) as error:
            raise StartError(f"the Kubernetes API: {error!r}") from error
        hosts = tuple(
            replace(host, agent=its, bind_host=bare(host_of(its)))
            if (its := agents.get(host.name))
            else host
            for host in cluster.hosts
        )
        return replace(cluster, hosts=hosts)

    @asynccontextmanager
    async def kept(self, made: MadeHosts, cluster: ClusterSpec) -> AsyncIterator[None]:
        """Keep the pods that are wanted, as long as this lasts. Raises `ListenError`."""
        options = self._options
        config = ExecutorConfig(agent_port=options.agent_port, scales=options.keda_port is None)

        def may_act() -> bool:
            return self._lease.is_held and not made.is_deposed

        async with AsyncExitStack() as stack:
            if options.keda_port is not None:
                scaler = ExternalScaler(made, cluster.host_sets, may_act)
                await stack.enter_async_context(
                    serve(scaler, cluster.credentials, options.keda_host, options.keda_port)
                )
            executor = Executor(self._api, made, cluster.host_sets, config, may_act)
            running = asyncio.create_task(executor.run(), name="pods")
            running.add_done_callback(self._ended)
            try:
                yield
            finally:
                running.cancel()
                await asyncio.wait([running])

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            self._broken(error)


def account_of(options: KubernetesOptions) -> ApiConfig:
    """The API as the pod's service account has it. Raises `StartError`."""
    from twolane.deploy.kubernetes.api import in_cluster

    return in_cluster(os.environ, options.namespace, options.pod_selector)
