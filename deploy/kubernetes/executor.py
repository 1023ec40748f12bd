"""Keeps the pods that are wanted, and tells the launcher where they are.

    wanted hosts ──▶ replicas of each StatefulSet ──▶ /scale        or KEDA does that
    pods, watched ──▶ came, left, ended

A StatefulSet's size that is changed elsewhere is changed back: this loop looks every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from twolane.deploy.agent.ended import CLASS_B, CLASS_C
from twolane.deploy.agent.host_link import HostState
from twolane.deploy.agent.made_hosts import MadeHosts
from twolane.deploy.controller.desired import InPod
from twolane.deploy.kubernetes.api import (
    ApiError,
    BusyError,
    ConflictError,
    KubernetesApi,
    UnreachableError,
)
from twolane.deploy.kubernetes.pods import Pod
from twolane.deploy.spec.cluster_spec import HostSetSpec
from twolane.rpc.listen import join

log = logging.getLogger(__name__)

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_TRIES = 20  # at a size that others change at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """`look_s`: between two looks at sizes that were not changed here. `scales`: False: KEDA sets
    the sizes."""

    agent_port: int
    scales: bool = True
    look_s: float = 5.0
    again_s: float = 1.0


def replicas_of(its: HostSetSpec, wanted: Collection[str]) -> int:
    """How many pods the set must have so that every wanted one is there: a StatefulSet has its
    lowest numbers."""
    return max((i + 1 for i in range(its.most) if f"{its.name}-{i}" in wanted), default=0)


class Executor:
    """`run` until cancelled."""

    def __init__(
        self,
        api: KubernetesApi,
        made: MadeHosts,
        sets: Sequence[HostSetSpec],
        config: ExecutorConfig,
        may_act: Callable[[], bool],
    ) -> None:
        """`may_act`: whether this controller is the one that changes anything, asked before each
        change."""
        self._api = api
        self._may_act = may_act
        self._made = made
        self._sets = sets
        self._config = config
        self._names = made.hosts().keys()
        self._pods: dict[str, Pod] = {}  # the newest of each name
        # Pods that were used and are not proven gone, by uid: an earlier controller's, too.
        self._unended = {its.boot_id: _pod_of(its) for its in made.earlier}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._keep_sizes())

    # Sizes

    async def _keep_sizes(self) -> None:
        while True:
            self._made.changed.clear()
            pause_s = self._config.look_s
            for its in self._sets:
                try:
                    await self._keep_size(its)
                except BusyError as error:
                    pause_s = max(self._config.again_s, error.retry_after_s)
                    self._warn(its.name, error)
                except (ApiError, UnreachableError) as error:
                    pause_s = self._config.again_s
                    self._warn(its.name, error)
            await self._look_for_proofs()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._made.changed.wait()

    async def _keep_size(self, its: HostSetSpec) -> None:
        """Raises `ApiError`, `UnreachableError`."""
        for _ in range(_TRIES):
            if self._made.wanted is None:  # guard: nothing is desired so far
                return
            if not self._config.scales:
                return
            now = await self._api.scale(its.name)
            n = replicas_of(its, self._made.wanted)
            if now.replicas == n or not self._may_act():  # guard: the one controller
                return
            try:
                await self._api.set_scale(its.name, n, now.version)
            except ConflictError:
                continue
            log.info("%s: %d pods, not %d", its.name, n, now.replicas)
            self._made.counters["kubernetes.scaled"] += 1
            return

    # Pods

    async def _watch(self) -> None:
        while True:
            try:
                pods, version = await self._api.pods()
                self._listed(pods)
                async for kind, pod in self._api.watch_pods(version):
                    self._saw(pod, is_deleted=kind == "DELETED")
            except BusyError as error:
                await asyncio.sleep(error.retry_after_s)
            except (ApiError, UnreachableError) as error:
                self._warn("pods", error)
            await asyncio.sleep(self._config.again_s)

    def _listed(self, pods: Sequence[Pod]) -> None:
        uids = {pod.uid for pod in pods}
        for name, pod in list(self._pods.items()):
            if pod.uid not in uids:
                self._gone(name)
        for pod in pods:
            self._saw(pod)

    def _saw(self, pod: Pod, *, is_deleted: bool = False) -> None:
        if pod.name not in self._names:
            return
        if pod.has_ended:
            how = "its containers have terminated, according to the kubelet"
            self._ended(pod, how, CLASS_B)
        before = self._pods.get(pod.name)
        if is_deleted or pod.has_ended:
            if before is None or before.uid == pod.uid:
                self._gone(pod.name)
            return
        self._pods[pod.name] = pod
        if pod.ip and not pod.is_leaving:
            self._unended[pod.uid] = pod
            agent = join(pod.ip, self._config.agent_port)
            self._made.came(pod.name, agent, pod.uid, pod.node)

    def _gone(self, name: str) -> None:
        """It is not there any more, which proves nothing."""
        self._pods.pop(name, None)
        self._made.left(name)

    def _ended(self, pod: Pod, how: str, proof_class: str) -> None:
        self._unended.pop(pod.uid, None)
        self._made.ended(pod.name, pod.uid, how, proof_class)

    async def _look_for_proofs(self) -> None:
        """Ask about the nodes of pods that are not there or silent."""
        for pod in list(self._unended.values()):
            state, newest = self._made.state(pod.name), self._pods.get(pod.name)
            is_newest = newest is not None and newest.uid == pod.uid
            if state is HostState.AWAY and not is_newest:
                del self._unended[pod.uid]  # nothing of ours ran there at its end
                continue
            if not pod.node or (is_newest and state in (HostState.UP, HostState.AWAY)):
                continue
            try:
                taints = await self._api.taints(pod.node)
            except (ApiError, UnreachableError) as error:
                self._warn(pod.node, error)
                continue
            if OUT_OF_SERVICE in taints:  # guard: out of service
                self._ended(pod, f"{pod.node} is out of service", CLASS_C)

    def _warn(self, what: str, error: Exception) -> None:
        self._made.counters["kubernetes.failed"] += 1
        log.warning("%s: %s", what, error)


def _pod_of(its: InPod) -> Pod:
    return Pod(
        name=its.host, uid=its.boot_id, ip="", node=its.node, is_leaving=False, has_ended=False
    )


class HasApi(Protocol):
    """What finds the pods that run before there is a launcher."""

    async def pods(self) -> tuple[list[Pod], str]: ...


async def agents_now(api: HasApi, names: Collection[str], port: int) -> dict[str, str]:
    """Endpoints of agents in pods that run, by pod. Raises `ApiError`, `UnreachableError`."""
    pods, _ = await api.pods()
    return {
        pod.name: join(pod.ip, port)
        for pod in pods
        if pod.name in names and pod.ip and not pod.has_ended
    }
