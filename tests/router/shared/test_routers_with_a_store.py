"""Routers that share a store in a real server: what their clients notice of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.redis_servers import RedisServer, debians_server, redis_server, watched
from tests.router.shared.conftest import MakeStore
from tests.until import until
from twolane.errors import DuplicateRequestError, QuotaError
from twolane.router.config import RouterConfig
from twolane.router.doors.metrics import RouterMetrics
from twolane.router.router import Router
from twolane.router.shared import keys
from twolane.router.store import Store
from twolane.router.testing.client import ask, client_of, message
from twolane.router.testing.cluster import ScriptedCluster
from twolane.security.keys import TenantLimits
from twolane.status import ClusterStatus

ACME = client_of("acme")


@asynccontextmanager
async def router_with(
    store: Store, limits: TenantLimits | None = None, *, step_s: float = 0.01
) -> AsyncIterator[Router]:
    """With workers of its own."""
    cluster, its = ScriptedCluster(), limits or TenantLimits()
    router = Router(RouterConfig(), cluster, store=store, limits_of=lambda tenant: its)
    async with router:
        cluster.router_announce = router.announce
        for worker_id in ("p0", "d0"):
            cluster.start_worker(worker_id).step_s = step_s
        await until(router.can_serve, "it serves")
        yield router
        for worker in cluster.workers.values():
            worker.kill()


def running(router: Router, name: str, n_tokens: int = 5) -> Any:
    """A request that ends when it is cancelled, or after so many tokens."""
    asked = message([1, 2, 3], request_id=name, max_tokens=n_tokens, ignore_eos=True)
    return asyncio.create_task(ask(router, asked, caller=ACME))


async def test_a_label_in_use_at_one_router_is_refused_at_another(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    async with router_with(a, step_s=1) as first, router_with(b) as second:
        task = running(first, "x", n_tokens=1000)
        await until(lambda: server.keys("*claim*"), "it has its label")
        refused = await running(second, "x")
        assert isinstance(refused.error, DuplicateRequestError)
        assert second.status().counters["refused.duplicate_request"] == 1
        task.cancel()
        await until(lambda: not server.keys("*claim*"), "the label is free")
        assert (await running(second, "x")).error is None
        await until(lambda: not server.keys("*claim*") + server.keys("*:r:*"), "nothing is left")


async def test_a_quota_of_requests_at_once_holds_for_all_routers_with_a_store_and_without(
    tmp_path: Path, store_of: MakeStore
) -> None:
    limits = TenantLimits(concurrent=4)
    with redis_server(tmp_path) as server:
        stores = [await store_of(name, server.url) for name in "ab"]
        await until(lambda: all(store.routers() for store in stores), "they know of each other")
        slow: Any = {"limits": limits, "step_s": 1}
        async with router_with(stores[0], **slow) as a, router_with(stores[1], **slow) as b:
            for phase in ("up", "down", "up again"):
                is_up = phase != "down"
                if phase == "up again":
                    server.start()
                elif not is_up:
                    # a busy machine may have let their leases end
                    await until(lambda: all(store.routers() for store in stores), "both are known")
                    server.kill()
                await until(partial(_are, stores, is_up), phase)
                # at first all of them are the first router's, then each has its part
                tasks = await _fill(a, f"{phase} a", 4 if is_up else 2)
                tasks += await _fill(b, f"{phase} b", 0 if is_up else 2)
                for task in tasks:
                    task.cancel()
                await until(lambda: not live(a) + live(b), "all have ended")
                if is_up:
                    await until(lambda: not server.keys("*live*"), "and are settled")


def _are(stores: list[Any], is_up: bool) -> bool:
    return all(store.health.is_up == is_up for store in stores)


async def _fill(router: Router, name: str, room: int) -> list[Any]:
    """Asks for four at once, of which so many find room; returns those that run."""
    tasks = [running(router, f"{name}{i}", 1000) for i in range(4)]
    try:
        await until(lambda: sum(task.done() for task in tasks) == 4 - room, "the others end")
    except TimeoutError:
        ended = [task.result().error for task in tasks if task.done()]
        parts = router.status().store, router.status().tenants
        pytest.fail(f"{name}: {room} of 4 should run, but these ended: {ended}; {parts}")
    assert all(isinstance(task.result().error, QuotaError) for task in tasks if task.done())
    await until(lambda: live(router) == room, "the rest run")
    return [task for task in tasks if not task.done()]


def live(router: Router) -> int:
    return sum(tenant.live for tenant in router.status().tenants)


async def test_no_request_fails_while_the_server_is_killed_stopped_flushed_and_started(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        store = await store_of("a", server.url, ask_s=0.05, socket_s=0.25)
        async with (
            router_with(store, TenantLimits(tokens_per_min=10**9)) as router,
            load(router) as outcomes,
        ):
            for trouble in ("none", "flushed", "stopped", "killed"):
                if trouble == "flushed":
                    server.command("FLUSHALL")
                if trouble == "stopped":
                    with server.stopped():
                        await until(lambda: not store.health.is_up, "it is noticed")
                        await more(outcomes)
                if trouble == "killed":
                    server.kill()
                    await until(lambda: not store.health.is_up, "it is noticed")
                    await more(outcomes)
                    server.start()
                await until(lambda: store.health.is_up, "it is up")
                await more(outcomes)
        await until(lambda: not server.keys("*claim*"), "nothing is left over")


async def test_no_request_fails_while_a_replica_takes_over(
    tmp_path: Path, store_of: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LEASE_MS", 3_000)  # what the replica never heard of ends by then
    with watched(tmp_path, debians_server()) as pair:
        store = await store_of("a", pair.url, ask_s=0.05, socket_s=0.25)
        async with (
            router_with(store, TenantLimits(tokens_per_min=10**9)) as router,
            load(router) as outcomes,
        ):
            await more(outcomes)
            await asyncio.to_thread(pair.fail_over)
            await until(lambda: pair.master.keys("*claim*"), "it has the claims", is_slow=True)
            await more(outcomes)
        await until(lambda: not pair.master.keys("*claim*"), "nothing is left over", is_slow=True)


@asynccontextmanager
async def load(router: Router) -> AsyncIterator[list[Any]]:
    """Four clients that ask without end, and the outcomes so far. At the end of the block none may
    have failed."""
    outcomes: list[Any] = []
    is_over = False

    async def client(name: str) -> None:
        while not is_over:
            outcomes.append(await running(router, f"{name}{len(outcomes)}"))

    clients = [asyncio.create_task(client(name)) for name in "pqrs"]
    yield outcomes
    is_over = True
    await asyncio.gather(*clients)
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    router.check_integrity()


async def more(outcomes: list[Any]) -> None:
    n = len(outcomes) + 20
    await until(lambda: len(outcomes) >= n, "requests go on")


async def test_other_routers_prefixes_decide_where_a_prompt_goes(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    async with router_with(a) as first, router_with(b) as second:
        prompt = message(list(range(256)), max_tokens=1)
        await ask(first, prompt, caller=ACME)
        affinity = second._dispatcher._placing._affinity
        await until(lambda: len(affinity) == 4, "the second knows its four blocks of 64 tokens")


@pytest.mark.parametrize("is_there", [True, False])
async def test_the_status_and_the_metrics_tell_of_the_store(
    tmp_path: Path, store_of: MakeStore, is_there: bool
) -> None:
    server = RedisServer(tmp_path)
    if is_there:
        server.start()
    try:
        url = server.url.replace("//", "//:secret@" if not is_there else "//")
        store = await store_of("a", url)
        async with router_with(store) as router:
            status = ClusterStatus.from_proto(router.status())
            metrics = RouterMetrics()
            metrics.watch(router.status)
            text = generate_latest(metrics.registry).decode()
    finally:
        server.kill()
    assert f"twolane_store_up {float(is_there)}" in text
    assert status.store is not None
    assert (status.store.up, bool(status.store.note)) == (is_there, not is_there)
    assert "secret" not in str(status)


async def test_without_a_store_nothing_is_said_of_one() -> None:
    from twolane.router.store import LocalStore

    async with router_with(LocalStore()) as router:
        assert ClusterStatus.from_proto(router.status()).store is None
