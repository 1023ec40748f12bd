"""Events for operators in a real server: they outlive the routers that noted them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc

from tests.redis_servers import RedisServer
from tests.router.shared.conftest import MakeStore
from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.operators.event_log import EventLog, kept_events
from twolane.router.testing.served import serve_cluster
from twolane.v1 import admin_pb2, admin_pb2_grpc


async def test_events_outlive_their_router_and_what_is_no_event_is_left_out(
    server: RedisServer, store_of: MakeStore
) -> None:
    wanted = admin_pb2.ListEventsRequest(kinds=["worker"])
    first = await store_of("router-0", server.url)
    log = EventLog("router-0", keep=first.keep_event)
    for kind in ("worker.gone", "router.lost", "worker.alive"):
        log.note(kind, "d0", f"d0: {kind}")
    server.command("XADD", "{tw:default}:ev", "*", "event", "nonsense")
    async with asyncio.timeout(30):
        second = await store_of("router-1", server.url)
        while len(found := await second.events(100)) < 4:
            await asyncio.sleep(0.01)
    kept = kept_events(found, wanted, time.time())
    assert [event.kind for event in kept] == ["worker.alive", "worker.gone"]
    assert {event.id for event in kept} < {
        event.id for event in log.page(admin_pb2.ListEventsRequest()).events
    }
    assert kept_events(found, wanted, time.time() + 9) == kept
    late = admin_pb2.ListEventsRequest(since_s=5)
    assert kept_events(found, late, time.time() + 9) == []


async def test_an_operator_sees_what_a_router_noted_that_has_ended(
    server: RedisServer, store_of: MakeStore, tmp_path: Path
) -> None:
    first = await store_of("router-0", server.url)
    EventLog("router-0", keep=first.keep_event).note("worker.gone", "d9", "worker d9 is gone")
    config = ServerConfig(
        stop_grace_s=0.2, metrics_port=None, http=None, admin_socket=str(tmp_path / "a.sock")
    )
    second = await store_of("router-1", server.url)
    named = RouterConfig(router_id="router-1", epoch=7)
    async with (
        serve_cluster("p0", "d0", config=named, server_config=config, store=second) as (router, _),
        grpc.aio.insecure_channel(router.admin_address) as channel,
        asyncio.timeout(60),
    ):
        look: Any = admin_pb2_grpc.AdminServiceStub(channel).ListEvents
        while True:
            page = await look(admin_pb2.ListEventsRequest(kinds=["worker"]))
            subjects = [event.subject for event in page.events]
            if {"d9", "p0", "d0"} <= {*subjects}:
                break
            await asyncio.sleep(0.01)
        assert len({event.id for event in page.events}) == len(page.events), "each once"
        assert page.remembered_since <= page.events[0].at
