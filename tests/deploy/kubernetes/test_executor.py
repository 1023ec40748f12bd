"""Sizes of StatefulSets and what becomes of their pods, on a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.deploy.kubernetes.fake_api import NAMESPACE, FakeApi, MakeRoutes
from twolane.deploy.agent.host_link import HostLink, HostState, LinkConfig
from twolane.deploy.agent.made_hosts import MadeHosts
from twolane.deploy.agent.term import Term
from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.kubernetes.api import ApiConfig, KubernetesApi
from twolane.deploy.kubernetes.executor import OUT_OF_SERVICE, Executor, ExecutorConfig, replicas_of
from twolane.deploy.kubernetes.executor import log as executor_log
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import HostSetSpec
from twolane.security.credentials import Credentials
from twolane.v1.agent_pb2 import HostProcess, WatchResponse

SETS = [
    HostSetSpec(name=f"x-{pool}", pools=(pool,), most=4, is_pods=True)
    for pool in ("prefill", "decode")
]
QUICK = ExecutorConfig(agent_port=7210, look_s=0.05, again_s=0.01)
WITHIN_S = 60.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():
            await asyncio.sleep(0.01)


class World:
    """Both sets have a pod, and `made` has links that nobody runs: no agent is asked."""

    def __init__(self, api: FakeApi, sets: Sequence[HostSetSpec] = SETS) -> None:
        self.api = api
        config = LinkConfig()
        self.links = {
            host.name: HostLink(host, Credentials(), Term(1, "c"), config)
            for its in sets
            for host in its.hosts()
        }
        self.dead: dict[int, str] = {}
        self.made = MadeHosts(self.links, self.dead)
        self.may_act = True

    def want(self, prefill: Collection[int], decode: Collection[int]) -> None:
        names = {"x-prefill": prefill, "x-decode": decode}
        self.made.want([f"{name}-{i}" for name, numbers in names.items() for i in numbers])

    @property
    def sizes(self) -> tuple[int, int]:
        return self.api.sets["x-prefill"]["replicas"], self.api.sets["x-decode"]["replicas"]

    def uid(self, pod: str) -> str:
        return str(self.api.pods[pod]["metadata"]["uid"])

    def hear(self, pod: str, *epochs: int) -> list[asyncio.Future[object]]:
        """As if the pod's agent had told that these workers run there. Returns their ends."""
        link, uid = self.links[pod], self.uid(pod)
        ends = []
        for epoch in epochs:
            handle = Handle(
                name="w", epoch=epoch, endpoint="", metrics_endpoint="", pid=1, worker_endpoint=""
            )
            ends.append(link.end_of(handle))
            link._boots[handle.key] = uid
        return ends  # type: ignore[return-value]


@asynccontextmanager
async def running(
    config: ExecutorConfig = QUICK, routes: MakeRoutes | None = None
) -> AsyncIterator[World]:
    async with FakeApi(more=routes) as api:
        for its in SETS:
            await api.set_replicas(its.name, 1)
        world = World(api)
        async with KubernetesApi(ApiConfig(url=api.url, namespace=NAMESPACE, watch_s=60)) as client:
            keeper = Executor(client, world.made, SETS, config, lambda: world.may_act)
            executor = asyncio.create_task(keeper.run())
            await until(lambda: api.n_watches > 0 or executor.done())
            try:
                yield world
            finally:
                executor.cancel()
                await asyncio.wait([executor])
        assert executor.cancelled(), executor.exception()


@pytest.mark.parametrize(
    ("seats", "pods"), [((), 0), ((0,), 1), ((0, 1), 2), ((2,), 3), ((0, 3), 4), ((1, 2), 3)]
)
def test_a_set_has_every_pod_with_a_seat(seats: tuple[int, ...], pods: int) -> None:
    assert replicas_of(SETS[0], {f"x-prefill-{i}" for i in seats}) == pods


async def test_pods_come_and_go_with_the_seats() -> None:
    async with running() as world:
        world.want([0], [0, 1])
        await until(lambda: world.sizes == (1, 2))
        await until(lambda: world.links["x-decode-1"].host.agent == "127.0.0.1:7210")
        world.want([0], [0])
        await until(lambda: world.sizes == (1, 1))
        await until(lambda: world.links["x-decode-1"].host.agent == "")
        world.want([], [])
        await until(lambda: not world.api.pods)


async def test_nothing_is_scaled_before_it_is_known_what_is_desired() -> None:
    async with running() as world:
        for _ in range(3):
            world.made.changed.set()
            await asyncio.sleep(QUICK.look_s)
        assert world.sizes == (1, 1)
        assert world.api.patches == []


async def test_a_pod_whose_seat_is_taken_stays_below_others_that_are_free() -> None:
    async with running() as world:
        world.want([0], [0, 1, 2])
        await until(lambda: world.sizes == (1, 3))
        world.want([0], [2])
        world.made.changed.set()
        await until(lambda: len(world.api.pods) == 4)
        await asyncio.sleep(3 * QUICK.look_s)
        assert world.sizes == (1, 3)


async def test_another_ones_edit_at_the_same_time_is_not_overwritten_unseen() -> None:
    async with running() as world:
        others = iter([2, 4])

        def edit(name: str) -> None:
            if (n := next(others, None)) is not None and name == "x-decode":
                world.api.sets[name].update(replicas=n, version=f"foreign-{n}")

        world.api.on_scale = edit
        world.want([0], [0, 1, 2])
        await until(lambda: world.sizes == (1, 3))
        assert world.api.patches.count(("x-decode", 3)) == 1, "both conflicts were seen"


async def test_a_foreign_size_is_set_back() -> None:
    async with running() as world:
        world.want([0], [0, 1])
        await until(lambda: world.sizes == (1, 2))
        await world.api.set_replicas("x-decode", 4)
        await until(lambda: world.sizes == (1, 2))
        await world.api.set_replicas("x-decode", 0)
        await until(lambda: world.sizes == (1, 2))
        await until(lambda: {"x-decode-0", "x-decode-1"} <= world.api.pods.keys())


async def test_a_controller_that_may_not_act_changes_nothing() -> None:
    async with running() as world:
        world.want([0], [0, 1])
        await until(lambda: world.sizes == (1, 2))
        world.may_act = False
        before = list(world.api.patches)
        world.want([0], [])
        await world.api.set_replicas("x-decode", 4)
        for _ in range(3):
            world.made.changed.set()
            await asyncio.sleep(QUICK.look_s)
        assert world.api.patches == before
        world.may_act = True
        await until(lambda: world.sizes == (1, 0))


async def test_a_busy_server_is_asked_again() -> None:
    async with running() as world:
        world.api.busy = 7
        world.want([0], [0, 1])
        # it counts when it has the server's answer
        await until(lambda: world.made.counters["kubernetes.scaled"] > 0)
        assert world.sizes == (1, 2)
        assert world.api.busy == 0
        assert world.made.counters["kubernetes.failed"] > 0
        assert world.made.counters["kubernetes.scaled"] == 1


@pytest.mark.parametrize("expire", [False, True])
async def test_what_happens_while_the_watch_is_lost_is_found_later(expire: bool) -> None:
    async with running() as world:
        world.want([0], [0, 1])
        await until(lambda: bool(world.links["x-decode-1"].host.agent))
        lists = world.api.n_lists
        world.api.break_watches(expire=expire)
        world.api.forget_pod("x-decode-1")
        await until(lambda: world.api.n_lists > lists)
        await until(lambda: world.links["x-decode-1"].host.agent == "")


async def test_where_keda_scales_the_controller_writes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(replace(QUICK, scales=False)) as world:
        await world.api.set_replicas("x-decode", 2)
        await until(lambda: bool(world.links["x-decode-1"].host.agent))
        for seats in ([0], [0, 1]):
            world.want([0], seats)
            watches = world.api.n_watches
            world.api.break_watches()
            await until(lambda n=watches: world.api.n_watches > n)  # type: ignore[misc]
        assert world.sizes == (1, 2), "KEDA scales"
        assert world.api.patches == []
    assert [it.message for it in caplog.records if it.name == executor_log.name] == []


async def test_pods_without_the_labels_are_neither_listed_nor_watched() -> None:
    async with FakeApi() as api:
        config = ApiConfig(url=api.url, namespace=NAMESPACE, selector="set=x-decode")
        await api.start_pod("other-0")
        await api.start_pod("x-decode-0")
        async with KubernetesApi(config) as client:
            pods, version = await client.pods()
            assert [pod.name for pod in pods] == ["x-decode-0"]
            watch = client.watch_pods(version)
            await api.start_pod("other-1")
            await api.start_pod("x-decode-1")
            _, pod = await anext(watch)
            assert pod.name == "x-decode-1"
            api.break_watches()
            assert [pod async for pod in watch] == []


async def test_a_pod_that_its_kubelet_says_has_terminated_proves_its_workers_dead() -> None:
    async with running() as world:
        world.want([0], [0])
        await until(lambda: bool(world.links["x-decode-0"].host.agent))
        (end,) = world.hear("x-decode-0", 7)
        world.api.delete_pod("x-decode-0")
        await until(end.done)
        assert end.result().proof_class == "B"  # type: ignore[attr-defined]
        assert world.dead == {7: "x-decode-0"}


async def test_a_pod_deleted_by_force_proves_nothing_until_its_node_is_out() -> None:
    async with running() as world:
        world.want([0], [0])
        await until(lambda: bool(world.links["x-decode-0"].host.agent))
        (end,) = world.hear("x-decode-0", 7)
        node = world.api.pods["x-decode-0"]["spec"]["nodeName"]
        world.api.forget_pod("x-decode-0")
        await world.api.start_pod("x-decode-0")
        lists = world.api.n_lists
        world.api.break_watches()
        await until(lambda: world.api.n_lists > lists)
        await asyncio.sleep(3 * QUICK.look_s)
        assert not end.done()
        assert world.links["x-decode-0"].state is HostState.SILENT
        world.api.nodes[node] = ["node.kubernetes.io/unreachable"]
        await asyncio.sleep(3 * QUICK.look_s)
        assert not end.done()
        world.api.nodes[node].append(OUT_OF_SERVICE)
        await until(end.done)
        assert end.result().proof_class == "C"  # type: ignore[attr-defined]


async def test_a_pod_that_may_run_what_an_earlier_controller_wanted_is_not_empty() -> None:
    async with running() as world:
        seat = Seat(name="decode-2", pool="decode", host="x-decode-2")
        world.made.take_over(Desired(seats=(seat,)))
        assert world.made.state("x-decode-2") is HostState.SILENT
        assert world.made.state("x-decode-1") is HostState.AWAY


async def test_a_pod_where_something_runs_stays_although_nobody_wants_it() -> None:
    async with running() as world:
        world.want([0], [0, 1])
        await until(lambda: world.sizes == (1, 2))
        link, uid = world.links["x-decode-1"], world.uid("x-decode-1")
        link._hear(WatchResponse(boot_id=uid, live=[HostProcess(name="w", epoch=7, pid=1)]))
        world.want([], [])
        await until(lambda: world.sizes[0] == 0)
        await asyncio.sleep(3 * QUICK.look_s)
        assert world.sizes == (0, 2)
        link._hear(WatchResponse(boot_id=uid))
        world.want([], [])
        await until(lambda: world.sizes == (0, 0))


async def test_while_nobody_knows_what_is_desired_a_silent_pod_stays() -> None:
    async with running() as world:
        await world.api.set_replicas("x-decode", 2)
        await until(lambda: bool(world.links["x-decode-1"].host.agent))
        world.made.take_over(None, {"x-prefill-0", "x-decode-0"})
        world.want([], [])
        await until(lambda: world.sizes[0] == 0)
        await asyncio.sleep(3 * QUICK.look_s)
        assert world.sizes == (0, 2)


async def test_a_new_pod_of_the_same_name_proves_nothing_of_the_old_one() -> None:
    async with running() as world:
        world.want([0], [0])
        link = world.links["x-decode-0"]
        link._hear(WatchResponse(boot_id=world.uid("x-decode-0")))
        (end,) = world.hear("x-decode-0", 7)
        link._hear(WatchResponse(boot_id="another"))
        assert not end.done()
        assert link.state is HostState.UP


async def test_a_pod_whose_agent_has_ended_all_leaves_nothing_behind() -> None:
    async with running() as world:
        link = world.links["x-decode-0"]
        link._hear(WatchResponse(boot_id="first", is_over=True))
        assert link.ended_boots == {"first"}
        link._hear(WatchResponse(boot_id="second"))
        link._hear(WatchResponse(boot_id="third"))
        assert link.lost_pods == {"second"}


async def test_a_host_is_away_once_all_that_ran_there_is_proven_dead() -> None:
    async with running() as world:
        link = world.links["x-decode-3"]
        handle = Handle(
            name="w", epoch=7, endpoint="", metrics_endpoint="", pid=1, worker_endpoint=""
        )
        states = [link.state]
        link.end_of(handle)
        states.append(link.state)
        link.note_end(handle.key, "was killed", "A")
        states.append(link.state)
        link.n_starting += 1  # it may come through
        states.append(link.state)
        away, silent = HostState.AWAY, HostState.SILENT
        assert states == [away, silent, away, silent]
