"""The store in a real server: what several routers agree on."""

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.redis_servers import RedisServer
from tests.router.shared.conftest import MakeStore, patient
from tests.until import until
from twolane.attempt_number import first_attempt
from twolane.router.requests.request import Label
from twolane.router.shared.commands import Own
from twolane.router.shared.redis_store import RedisStore
from twolane.router.store import ADMITTED, Ask, Held, Placement, RouterRecord, Short
from twolane.security.keys import TenantLimits

LABEL = Label("acme", "x")
FREE = TenantLimits()


def ask(name: str, label: Label = LABEL, limits: TenantLimits = FREE, n_tokens: float = 0.0) -> Ask:
    return Ask(label=label, submission_id=name, limits=limits, n_tokens=n_tokens)


async def test_a_label_is_one_submissions_at_all_routers(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    assert await a.admit(ask("1")) is ADMITTED
    assert await a.admit(ask("1")) is ADMITTED, "again"
    assert await a.admit(ask("2")) == Held("1")
    assert await b.admit(ask("3")) == Held("1", "a.7")
    assert await b.admit(ask("3", Label("other", "x"))) is ADMITTED, "another tenant's"
    a.release("1", 0)
    assert await a.admit(ask("4")) is ADMITTED, "at once where it was released"
    a.release("4", 0)
    await until(lambda: len(server.keys("*claim*")) == 1, "only the other tenant's is left")
    assert await b.admit(ask("5")) is ADMITTED


async def test_a_label_that_a_dead_router_held_is_free(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url, here_s=1e9, keep_s=1e9)
    assert await b.admit(ask("1")) is ADMITTED
    server.command("DEL", "{tw:default}:router:b.7")  # which says nothing any more
    assert await a.admit(ask("2")) is ADMITTED


async def test_a_submission_that_goes_on_at_another_router_has_its_label_there(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    assert await a.admit(ask("1")) is ADMITTED
    assert await b.admit(ask("1")) is ADMITTED
    assert await b.admit(ask("2")) == Held("1")
    a.release("1", 0)
    await until(partial(_has_sent, a), "it is sent")
    assert await a.admit(ask("2")) == Held("1", "b.7"), "a late release frees nothing"


async def test_a_release_frees_nothing_that_is_another_submissions(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    await a.admit(ask("1"))
    await b.admit(ask("2"))
    b.release("2", 0)
    b.release("1", 0)
    await until(lambda: not b._queue, "all is written")
    assert await b.admit(ask("3")) == Held("1", "a.7")


async def test_quotas_are_counted_for_all_routers_together(
    server: RedisServer, store_of: MakeStore
) -> None:
    stores = [await store_of(name, server.url) for name in "abc"]
    limits = TenantLimits(concurrent=4)
    verdicts = [
        await stores[i % 3].admit(ask(f"s{i}", Label("acme", f"{i}"), limits)) for i in range(6)
    ]
    assert verdicts == [ADMITTED] * 4 + [Short("concurrent", 1.0, 0.0)] * 2
    stores[0].release("s0", 5)
    await until(lambda: server.command("ZCARD", "{tw:default}:live:acme") == 3, "it is given back")
    assert await stores[2].admit(ask("s6", Label("acme", "6"), limits)) is ADMITTED


async def test_tokens_are_settled_to_those_that_a_submission_had(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    limits = TenantLimits(tokens_per_min=6)  # one in ten seconds: the test takes less

    async def one(store: Any, name: str, n_tokens: float) -> Any:
        return await store.admit(ask(name, Label("acme", name), limits, n_tokens))

    assert await one(a, "1", 5) is ADMITTED
    assert await one(a, "1", 5) is ADMITTED, "again: it takes nothing twice"
    short = await one(b, "2", 5)
    assert isinstance(short, Short)
    assert short.quota == "tokens"
    assert 1 <= short.remaining < 3
    assert 20 < short.wait_s <= 40
    a.release("1", 1)
    a.release("1", 1)
    await until(lambda: not server.keys("*live*"), "it is settled")
    assert await one(b, "2", 5) is ADMITTED
    assert isinstance(await one(b, "3", 5), Short)


async def test_a_submission_that_passes_to_another_router_is_charged_once(
    server: RedisServer, store_of: MakeStore
) -> None:
    limits = TenantLimits(tokens_per_min=6_000)  # a hundred a second come back
    for is_planned in (False, True):
        server.command("FLUSHALL")
        slow = {"keep_s": 1e9}
        a, b = await store_of("a", server.url, **slow), await store_of("b", server.url, **slow)
        assert await a.admit(ask("1", LABEL, limits, 5_000)) is ADMITTED
        a.place("1", Placement(first_attempt(0), 3, 4))
        await until(partial(_has_sent, a), "it is sent")
        b.own(LABEL, "1", limits, 30)  # as far as that router knows
        b.place("1", Placement(first_attempt(1), 3, 4))
        await until(partial(_has_sent, b), "it is sent")
        if is_planned:
            a.release("1", 20)
            await until(partial(_has_sent, a), "it is sent")
            b.place("1", Placement(first_attempt(1), 3, 4))
        b.release("1", 70)
        await until(lambda: not server.keys("*:r:*"), "it is settled")
        left = float(server.command("HGET", "{tw:default}:q:acme", "tokens"))
        assert 6_000 - 70 - 1 <= left <= 6_000


async def test_a_submission_that_is_asked_for_twice_at_once_is_refused_twice_and_left_nowhere(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    assert await b.admit(ask("1")) is ADMITTED
    verdicts = await asyncio.gather(a.admit(ask("2")), a.admit(ask("2")))
    assert sorted(verdicts, key=repr) == [Held("1", "b.7"), Held("2")]
    assert not a._own
    assert not len(a._local)


async def test_a_submission_that_is_released_while_it_is_refused_is_left_nowhere(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    assert await b.admit(ask("1")) is ADMITTED
    asked = asyncio.create_task(a.admit(ask("2")))
    await asyncio.sleep(0)
    assert "2" in a._own, "it is asked for"
    a.release("2", 0)
    assert await asked == Held("1", "b.7")
    assert not len(a._local)


async def test_requests_a_second_are_counted(server: RedisServer, store_of: MakeStore) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    limits = TenantLimits(requests_per_s=0.001)
    assert await a.admit(ask("1", Label("acme", "1"), limits)) is ADMITTED
    short = await b.admit(ask("2", Label("acme", "2"), limits))
    assert isinstance(short, Short)
    assert short.quota == "requests"
    assert 900 < short.wait_s <= 1000
    assert await b.admit(ask("2", Label("acme", "2"))) is ADMITTED, "what was refused holds nothing"


async def test_a_request_larger_than_a_minutes_tokens_is_admitted_when_all_are_there(
    server: RedisServer, store_of: MakeStore
) -> None:
    store, limits = await store_of("a", server.url), TenantLimits(tokens_per_min=10)
    assert await store.admit(ask("1", Label("t", "1"), limits, 100)) is ADMITTED
    short = await store.admit(ask("2", Label("t", "2"), limits, 1))
    assert isinstance(short, Short)
    assert short.wait_s > 500, "the debt is paid off first"


async def test_leases_of_a_router_that_died_count_no_longer(
    server: RedisServer, store_of: MakeStore
) -> None:
    store, limits = await store_of("a", server.url), TenantLimits(concurrent=1)
    server.command("ZADD", "{tw:default}:live:acme", 1, "somebody's, whose lease ended in 1970")
    assert await store.admit(ask("1", LABEL, limits)) is ADMITTED


async def test_the_index_tells_who_answers_a_submission_and_where_its_row_is(
    server: RedisServer, store_of: MakeStore
) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    assert await b.find("1") is None
    await a.admit(ask("1"))
    at = Placement(first_attempt(fence=1), 2**63 - 1, 5)
    a.place("1", at)
    await until(lambda: server.keys("*r:1"), "it is written")
    assert await b.find("1") == ("a.7", "acme", at)
    a.release("1", 3)
    await until(lambda: not server.keys("*r:1"), "it is removed")
    assert await b.find("1") is None


async def test_of_two_owners_the_one_with_the_higher_fence_is_recorded(
    server: RedisServer, store_of: MakeStore
) -> None:
    slow = {"keep_s": 1e9}
    a, b = await store_of("a", server.url, **slow), await store_of("b", server.url, **slow)
    for store, fence in ((a, 1), (b, 2), (a, 1)):
        store._local.claim(LABEL, "1")
        store._own["1"] = Own(LABEL, FREE)
        store.place("1", Placement(first_attempt(fence), 3, 4))
        await until(partial(_has_sent, store), "it is sent")
    a.release("1", 0)
    await until(lambda: not a._queue, "it is sent")
    found = await b.find("1")
    assert found is not None
    assert found.router == "b.7"


def _has_sent(store: RedisStore) -> bool:
    return not store._queue


async def test_routers_know_of_each_other(server: RedisServer, store_of: MakeStore) -> None:
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    record = RouterRecord(
        router_id="a", epoch=7, endpoint="h:1", http_endpoint="h:2", worker_endpoint="h:3"
    )
    a.introduce(record)
    await until(lambda: record in b.routers() and a.routers(), "they hear of each other")
    assert [other.router_id for other in a.routers()] == ["b"]


async def test_a_router_that_leaves_is_known_no_longer(
    server: RedisServer, store_of: MakeStore
) -> None:
    b = await store_of("b", server.url)
    async with RedisStore(patient(server.url), "a", epoch=7):
        await until(lambda: b.routers(), "b hears of a")
    await until(lambda: not b.routers(), "b hears no more of a")


async def test_prefixes_are_heard_by_the_others_and_by_those_that_start_later(
    server: RedisServer, store_of: MakeStore
) -> None:
    heard: dict[str, list[tuple[list[int], int]]] = {"a": [], "b": [], "c": []}

    def sink(name: str) -> Callable[[Sequence[int], int], None]:
        return lambda hashes, epoch: heard[name].append((list(hashes), epoch))

    stores = {}
    for name in "abc":
        stores[name] = await store_of(name, server.url)
        if name != "c":
            stores[name].listen(sink(name))
    names, epoch = array("Q", [1, 2**64 - 1]), 2**62
    stores["a"].note_prefix(names, epoch)
    stores["a"].note_prefix(array("Q"), epoch)
    await until(lambda: heard["b"], "b hears it")
    stores["c"].listen(sink("c"))
    await until(lambda: heard["c"], "c reads it")
    assert heard == {"a": [], "b": [(list(names), epoch)], "c": [(list(names), epoch)]}


async def test_routers_of_two_clusters_share_nothing(
    server: RedisServer, store_of: MakeStore
) -> None:
    a = await store_of("a", server.url, cluster="one")
    b = await store_of("b", server.url, cluster="two")
    assert await a.admit(ask("1")) is ADMITTED
    assert await b.admit(ask("2")) is ADMITTED


async def test_clients_are_named_after_their_router(
    server: RedisServer, store_of: MakeStore
) -> None:
    await store_of("router-3", server.url)
    with server.client() as client:
        assert "router-3" in {one["name"] for one in client.client_list()}


async def test_a_clock_that_is_off_the_stores_is_told(
    server: RedisServer, store_of: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = await store_of("a", server.url)
    await until(lambda: 0 < abs(a.health.clock_off_s) < 1, "it has looked")
    before = time.time()
    monkeypatch.setattr(
        "twolane.router.shared.redis_store.time.time", lambda: before - 100
    )  # standing still, so the difference only grows
    await until(lambda: a.health.clock_off_s > 99, "it has looked again")


async def test_what_the_store_is_still_asked_for_is_not_told_to_it_as_admitted(
    server: RedisServer, store_of: MakeStore
) -> None:
    limits = TenantLimits(concurrent=1)
    a, b = await store_of("a", server.url), await store_of("b", server.url)
    assert await a.admit(ask("1", limits=limits)) is ADMITTED
    connections = b._config.asks_at_once
    for _ in range(connections):  # all of them are in use
        await b._asking.acquire()
    asked = asyncio.create_task(b.admit(ask("2", Label("acme", "y"), limits)))
    await until(lambda: "2" in b._own, "it waits for a connection")
    await b._say_own()
    for _ in range(connections):
        b._asking.release()
    assert isinstance(await asked, Short)
    a.release("1", 0)
