"""What is left of the store's advice when its server is down, slow, empty, another or an old one.

Each test goes on when a state is reached, never after a time.
"""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests import until as waits
from tests.pki import Pki
from tests.redis_servers import TAKEOVER_S, RedisServer, redis_server, tls_server, watched
from tests.router.shared.conftest import MakeStore
from twolane.attempt_number import first_attempt
from twolane.router.requests.request import Label
from twolane.router.shared.address import parse_address
from twolane.router.shared.config import StoreConfig
from twolane.router.shared.connect import StoreClient
from twolane.router.shared.redis_store import RedisStore
from twolane.router.store import ADMITTED, Ask, Held, Placement, Short, Verdict
from twolane.security.keys import TenantLimits
from twolane.testing.virtual_time import virtual_time_runner

QUICK = {"ask_s": 0.05, "socket_s": 0.25}  # as it is by default
FREE = TenantLimits()
ROW = Placement(first_attempt(fence=0), 1, 2)
until = partial(waits.until, is_slow=True)  # a server that is stopped keeps its callers waiting


async def admit(store: Any, name: str, limits: TenantLimits = FREE, n_tokens: float = 0) -> Verdict:
    """Under a label of the same name."""
    label = Label("acme", name.partition("/")[0])
    ask = Ask(label=label, submission_id=name, limits=limits, n_tokens=n_tokens)
    verdict: Verdict = await store.admit(ask)
    return verdict


def is_up(store: Any) -> bool:
    return bool(store.health.is_up)


async def test_without_a_server_everything_is_admitted_at_once_and_labels_are_local(
    tmp_path: Path, store_of: MakeStore
) -> None:
    server = RedisServer(tmp_path)
    store = await store_of("a", server.url)
    assert not is_up(store)
    assert store.health.note
    assert await admit(store, "x/1") is ADMITTED
    assert await admit(store, "x/2") == Held("x/1")
    assert await store.find("x/1") is None
    server.start()
    try:
        await until(lambda: is_up(store), "it comes up by itself")
        await until(lambda: server.keys("*claim*"), "and is told what was admitted meanwhile")
    finally:
        server.kill()


async def test_a_server_that_is_killed_is_asked_no_more_and_told_all_when_it_is_back(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        a, b = await store_of("a", server.url), await store_of("b", server.url)
        assert await admit(a, "x/1") is ADMITTED
        a.place("x/1", ROW)
        await until(lambda: a.routers() and b.routers(), "they know of each other")
        server.kill()
        await until(lambda: not is_up(a) and not is_up(b), "both have noticed")
        assert (a.quota_parts, b.quota_parts) == (2, 2)
        assert await admit(b, "x/2") is ADMITTED, "workers refuse true duplicates"
        assert await admit(a, "y/1") is ADMITTED
        b.release("x/2", 0)
        server.start()
        await until(lambda: is_up(a) and is_up(b), "both are back")
        assert (a.quota_parts, b.quota_parts) == (1, 1)
        await until(lambda: len(server.keys("*claim*")) == 2, "a has said again what it holds")
        assert await admit(b, "y/2") == Held("y/1", "a.7")
        assert (await b.find("x/1")) == ("a.7", "acme", ROW)


async def test_a_server_that_hangs_costs_one_request_its_patience_and_the_others_nothing(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        store = await store_of("a", server.url, ask_s=0.5)
        with server.stopped():
            assert await admit(store, "x") is ADMITTED
            assert not is_up(store), "it had half a second"
            began = monotonic()
            for i in range(100):
                assert await admit(store, f"y{i}") is ADMITTED
                store.place(f"y{i}", ROW)
                store.release(f"y{i}", 1)
            assert monotonic() - began < 50 * 0.5, "nobody waits for what is known to hang"
        await until(lambda: is_up(store), "it is back")
        assert await admit(store, "x/2") == Held("x")


async def test_answers_that_came_too_late_are_never_taken_for_other_answers(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        a, b = await store_of("a", server.url, ask_s=0.3), await store_of("b", server.url)
        assert await admit(b, "theirs/1") is ADMITTED
        with server.stopped():
            await asyncio.gather(*(admit(a, f"late{i}") for i in range(8)))
        a._config = replace(a._config, ask_s=30.0)  # however busy this machine is
        await until(lambda: is_up(a), "it is back")
        for i in range(20):
            assert await admit(a, "theirs/2") == Held("theirs/1", "b.7")
            assert await admit(a, f"ours{i}") is ADMITTED


async def test_a_flushed_server_knows_again_what_is_owned(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        a, b = await store_of("a", server.url), await store_of("b", server.url)
        limits = TenantLimits(concurrent=1)
        assert await admit(a, "x", limits) is ADMITTED
        a.place("x", ROW)
        await until(lambda: server.keys("*r:x"), "it is written")
        server.command("FLUSHALL")
        for key in ("*r:x", "*live*", "*router:a.7"):
            await until(partial(server.keys, key), f"{key} is written again")
        assert await admit(b, "x/2", limits) == Held("x", "a.7")
        assert await admit(b, "y", limits) == Short("concurrent", 1.0, 0.0)
        await until(lambda: [its.router_id for its in b.routers()] == ["a"], "it says so again")


async def test_what_an_old_file_brings_back_expires_or_is_nobodys(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        dead = await store_of("dead", server.url, here_s=1e9, keep_s=1e9)
        assert await admit(dead, "x/1") is ADMITTED
        assert await admit(dead, "quota", TenantLimits(concurrent=1)) is ADMITTED
        dead._circuit.failed("it has died", float("inf"))
        server.command("DEL", "{tw:default}:router:dead.7")
        server.command("ZADD", "{tw:default}:live:acme", 1, "quota")
        server.kill()
        server.start()
        assert server.keys("*claim*"), "the file brings back what was"
        store = await store_of("b", server.url)
        assert await admit(store, "x/2") is ADMITTED
        assert await admit(store, "other", TenantLimits(concurrent=1)) is ADMITTED
        left = [server.command("PTTL", key) for key in server.keys("*claim*")]
        assert all(0 < ms <= 15_000 for ms in left), "what nobody renews does not stay"


async def test_after_a_failover_the_store_is_the_new_master(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with watched(tmp_path) as pair:
        a, b = await store_of("a", pair.url), await store_of("b", pair.url)
        assert await admit(a, "x/1") is ADMITTED
        a.place("x/1", ROW)
        pair.master.kill()
        await until(lambda: not is_up(a), "a notices")
        assert await admit(a, "y/1") is ADMITTED, "meanwhile"
        await until(lambda: is_up(a) and is_up(b), "the replica has taken over", TAKEOVER_S)
        await until(lambda: len(pair.replica.keys("*claim*")) == 2, "it knows all")
        async with asyncio.timeout(30):  # b may not have noticed yet that its master is gone
            while await admit(b, "x/2") != Held("x/1", "a.7"):
                await asyncio.sleep(0.05)
        assert await admit(b, "y/2") == Held("y/1", "a.7")


async def test_a_server_that_only_reads_is_down_with_a_reason(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        server.command("REPLICAOF", "127.0.0.1", "1")
        store = await store_of("a", server.url)
        assert not is_up(store)
        assert "read only" in store.health.note
        assert await admit(store, "x") is ADMITTED
        server.command("REPLICAOF", "NO", "ONE")
        await until(lambda: is_up(store), "it is back")


async def test_a_wrong_password_is_told_without_repeating_it(
    tmp_path: Path, store_of: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server(tmp_path, "--user", "u", "on", ">right", "~*", "&*", "+@all") as server:
        host = server.url.partition("://")[2]
        store = await store_of("a", f"redis://u:wrong-secret@{host}")
        assert not is_up(store)
        assert "secret" not in str(store.health) + caplog.text
        assert await admit(store, "x") is ADMITTED
        store = await store_of("b", f"redis://u:right@{host}")
        assert is_up(store)


async def test_a_queue_that_is_full_drops_the_oldest_and_counts_them(
    tmp_path: Path, store_of: MakeStore
) -> None:
    with redis_server(tmp_path) as server:
        store = await store_of("a", server.url, queued=10, **QUICK)
        store._circuit.failed("down", 0.0)
        for i in range(15):
            await admit(store, f"x{i}")
            store.place(f"x{i}", ROW)
        assert len(store._queue) == 10
        assert store.health.dropped >= 5
        await until(lambda: len(server.keys("*r:x*")) == 15, "all of them are told when it is up")


async def test_tls_with_certificates_of_both_sides(tmp_path: Path, store_of: MakeStore) -> None:
    pki = Pki(tmp_path / "pki")
    with tls_server(tmp_path / "server", pki.files("worker/redis")) as server:
        files = pki.files("router/router-0")
        place = f"rediss://localhost:{server.port}/0?ca={files.ca}"
        store = await store_of("a", f"{place}&cert={files.cert}&key={files.key}")
        assert is_up(store), store.health.note
        assert await admit(store, "x") is ADMITTED
        assert server.keys("*claim*")
        stranger = await store_of("b", place)
        assert not is_up(stranger), "it shows no certificate"
        plain = await store_of("c", server.url)
        assert not is_up(plain)


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_a_server_that_hangs_for_half_a_minute(tmp_path: Path, store_of: MakeStore) -> None:
    with redis_server(tmp_path) as server:
        store = await store_of("a", server.url, **QUICK)
        longest_s, n = 0.0, 0
        with server.stopped():
            began = monotonic()
            while monotonic() - began < 30:
                asked = monotonic()
                assert await admit(store, f"x{n}") is ADMITTED
                longest_s, n = max(longest_s, monotonic() - asked), n + 1
                store.release(f"x{n - 1}", 1)
                await asyncio.sleep(0.01)
        await until(lambda: is_up(store), "it is back")
        assert longest_s < 5, "50 ms, and what a busy machine adds: nobody waits until it is back"
        await until(lambda: not server.keys("*claim*"), "nothing is left over")


def test_a_store_that_is_down_costs_nothing_between_two_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_pauses = 0
    pause = RedisStore._pause

    async def counted(self: RedisStore) -> None:
        nonlocal n_pauses
        n_pauses += 1
        assert n_pauses < 1000, "it spins"
        await pause(self)

    async def refused(self: StoreClient, command: object) -> None:
        raise ConnectionRefusedError

    async def main() -> None:
        config = StoreConfig(address=parse_address("redis://127.0.0.1:1"))
        async with RedisStore(config, "a", 7) as store:
            await asyncio.sleep(60.0)
            assert not is_up(store)

    monkeypatch.setattr(RedisStore, "_pause", counted)
    monkeypatch.setattr(StoreClient, "run", refused)
    with virtual_time_runner() as runner:
        runner.run(main())
    assert n_pauses < 200, "it looks about once a second"
