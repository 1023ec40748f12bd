"""A whole cluster whose pods come and go, on a fake API server: real agents, router and workers."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.agent.test_agents_killed import Load
from tests.deploy.kubernetes.fake_api import NAMESPACE, FakeApi
from tests.deploy.kubernetes.pods import AgentPod, Pods
from tests.ports import free_ports
from tests.timing import PATIENT
from twolane.admin import AdminClient
from twolane.deploy.agent.supervision import connect, supervisor_over
from twolane.deploy.kubernetes.api import ApiConfig
from twolane.deploy.kubernetes.hosts import KubernetesHosts
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.spec.parse_topology import parse_topology
from twolane.deploy.spec.resolve import resolve
from twolane.errors import DeadlineError, UnavailableError
from twolane.rpc.secret import new_secret
from twolane.v1 import acts_pb2

WITHIN_S = 60.0


class World:
    """`folder` has the pods' files. `pods` are all that there ever were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        secret = folder / "secret"
        secret.write_text(new_secret())
        self.secret = secret.read_text()
        self.agent_port, self.door, self._worker_port = free_ports(3)
        environment = {"TWOLANE_SECRET_FILE": str(secret), "TMPDIR": str(folder)}
        self.pods = Pods(folder, self.agent_port, environment)
        self.api = FakeApi(self.pods.make)
        self.events: list[Event] = []
        self.router_ip = ""

    async def make(self) -> None:
        self.router_ip = (await self.pods.make("x-router-0", "router")).ip
        for name in ("x-prefill", "x-decode"):
            await self.api.set_replicas(name, 0)

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[None]:
        """A controller that serves; it leaves the cluster as it is."""
        topology = parse_topology(
            {
                "launcher": "kubernetes",
                "kubernetes": {"namespace": NAMESPACE, "agent_port": self.agent_port},
                "hosts": [
                    {
                        "name": "x-router-0",
                        "agent": f"{self.router_ip}:{self.agent_port}",
                        "routers": 1,
                        "seats": 0,
                        "gpus": [],
                    }
                ],
                "host_sets": [
                    {"name": f"x-{role}", "pools": [role], "most": 4}
                    for role in ("prefill", "decode")
                ],
                "pools": [{"role": role, "engine": "fake"} for role in ("prefill", "decode")],
                "router": {"port": self.door, "worker_port": self._worker_port, "no_http": True},
                "timing": PATIENT,
            }
        )
        cluster = replace(resolve(topology), secret=self.secret)
        broken = asyncio.get_running_loop().create_future()
        config = ApiConfig(url=self.api.url, namespace=NAMESPACE)
        async with KubernetesHosts(topology.kubernetes, config, broken.set_exception) as hosts:
            launcher, cluster = await connect(await hosts.located(cluster), share=False)
            supervisor = await supervisor_over(launcher, cluster, self.events.append)
            n = len(self.events)
            async with hosts.kept(launcher.made, cluster):
                running = asyncio.create_task(supervisor.run(asyncio.Event(), asyncio.Event()))
                await self.until(lambda: running.done() or self.has(Kind.READY, n))
                assert not running.done(), running.exception()
                yield
                assert not running.done(), running.exception()
                running.cancel()
                await asyncio.wait([running])
        assert not broken.done(), broken.exception()

    def has(self, kind: Kind, after: int) -> bool:
        return any(event.kind is kind for event in self.events[after:])

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await asyncio.sleep(0.05)

    def _admin(self) -> AdminClient:
        (path,) = self.folder.glob("twolane-agent-*/admin.sock")
        return AdminClient(f"unix:{path}")

    async def scale(self, pool: str, n: int) -> None:
        def act() -> None:
            with self._admin() as admin:
                size = acts_pb2.PoolSize(pool=pool, workers=n)
                admin.call("ScalePools", acts_pb2.ScalePoolsRequest(pools=[size]))

        await asyncio.to_thread(act)

    async def until_alive(self, *names: str) -> None:
        def alive() -> set[str]:
            with self._admin() as admin, suppress(UnavailableError, DeadlineError):
                workers = admin.status().workers
                return {its.worker_id for its in workers if its.state == "alive"}
            return set()

        clock = asyncio.get_running_loop().time
        end_s = clock() + WITHIN_S
        while (found := await asyncio.to_thread(alive)) != {*names}:
            assert clock() < end_s, found
            await asyncio.sleep(0.1)

    def incarnations(self) -> set[int]:
        """The epochs of all workers that run."""
        return {epoch for pod in self.pods.all.values() for epoch in pod.epochs() if epoch}

    def ended(self) -> dict[str, AgentPod]:
        """Pods that were told to end."""
        return {name: pod for name, pod in self.pods.all.items() if pod.at_end is not None}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="tw-"))
    world = World(folder)
    try:
        async with world.api:
            await world.make()
            yield world
    finally:
        for pod in world.pods.all.values():
            await pod.stop()
        shutil.rmtree(folder)


@pytest.mark.timeout(300)
async def test_pods_come_with_workers_and_go_without_any_and_no_request_notices() -> None:
    async with world() as its:
        async with its.controller():
            await its.until_alive("prefill-0", "decode-0")
            assert {*its.api.pods} == {"x-prefill-0", "x-decode-0"}
            await its.scale("decode", 3)
            await its.until_alive("prefill-0", "decode-0", "decode-1", "decode-2")
        before = its.incarnations()
        load = Load(f"127.0.0.1:{its.door}")
        try:
            async with its.controller():  # the next one
                await asyncio.to_thread(load.goes_on)
                assert len(its.api.pods) == 4
                assert its.ended() == {}
                assert its.incarnations() == before
                await its.scale("decode", 1)
                await its.until(lambda: len(its.api.pods) == 2)
                await asyncio.to_thread(load.goes_on)
            await its.until_alive("prefill-0", "decode-0")
        finally:
            await asyncio.to_thread(load.close)
        assert load.failures == []
        assert len(its.ended()) == 2
        assert {name.split()[0] for name in its.ended()} == {"x-decode-1", "x-decode-2"}
        assert [pod.at_end for pod in its.ended().values()] == [[], []], "none had a worker"
