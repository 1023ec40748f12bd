"""What a router notes of itself and its surroundings, and how much it remembers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twolane.router.config import RouterConfig
from twolane.router.doors.admin.looks import Watched, merged
from twolane.router.operators.changes import Changes
from twolane.router.operators.event_log import EventLog
from twolane.router.router import Router
from twolane.router.store import Health
from twolane.rpc.link import LinkBrokenError
from twolane.v1 import admin_pb2, cluster_pb2, worker_pb2


def told(log: EventLog, **wanted: object) -> list[tuple[str, str]]:
    page = log.page(admin_pb2.ListEventsRequest(**wanted))  # type: ignore[arg-type]
    return [(event.kind, event.subject) for event in page.events]


def test_a_router_and_a_store_that_come_and_go_are_events_once() -> None:
    log = EventLog("router-0")
    changes = Changes(log)
    for names in ([], ["router-1"], ["router-1"], []):
        changes.note_routers(names)
    for is_up in (True, False, False, True):
        changes.note_store(Health(address="redis", is_up=is_up, note="refused"))
    changes.note_store(None)
    assert told(log) == [
        ("router.found", "router-1"),
        ("router.lost", "router-1"),
        ("store.down", "redis"),
        ("store.up", "redis"),
    ]


def test_old_events_are_forgotten_and_it_is_said_since_when() -> None:
    now = [1000.0]
    log = EventLog("router-0", most=3, unix_time=lambda: now[0])
    for n in range(5):
        now[0] += 1
        log.note("worker.alive" if n % 2 else "act.drain", f"w{n}", "x" * 1000)
    page = log.page(admin_pb2.ListEventsRequest())
    assert [event.subject for event in page.events] == ["w2", "w3", "w4"]
    assert page.remembered_since == 1003.0
    assert all(len(event.text.encode()) <= 300 for event in page.events)
    assert told(log, kinds=["worker"]) == [("worker.alive", "w3")]
    assert told(log, since_s=0.5) == [("act.drain", "w4")]
    assert told(log, subject="w2") == [("act.drain", "w2")]
    assert log.page(admin_pb2.ListEventsRequest(page_size=1)).left_out == 2
    assert told(log, audit=True) == []


async def test_who_waits_hears_of_the_next_event() -> None:
    log = EventLog("router-0")
    waiting = asyncio.create_task(log.wait(60.0))
    await asyncio.sleep(0)
    log.take_in([cluster_pb2.ClusterEvent(kind="worker.gone")])
    async with asyncio.timeout(30.0):
        await waiting
    await log.wait(0.001)


def test_an_event_that_is_told_again_is_taken_in_once_and_shown_where_it_belongs() -> None:
    now = [1000.0]
    log = EventLog("router-0", unix_time=lambda: now[0])
    log.note("router.up", "router-0", "the router serves")
    before = cluster_pb2.ClusterEvent(id="c-1", at=990.0, kind="process.died", subject="router-0")
    for _ in range(2):
        log.take_in([before])
    assert told(log) == [("process.died", "router-0"), ("router.up", "router-0")]


def seen(at: float, source: str, text: str = "decode-0 died: killed by SIGKILL") -> Any:
    return cluster_pb2.ClusterEvent(
        id=f"{at}-{source}", at=at, source=source, kind="process.died", text=text
    )


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        # One controller tells of three deaths: three there were.
        ([(0.0, "c"), (2.5, "c"), (4.0, "c")], [(0.0, "c"), (2.5, "c"), (4.0, "c")]),
        # Two routers have seen the same one.
        ([(0.0, "r0"), (0.3, "r1")], [(0.0, "r0")]),
        # They have seen two, the second in the other order.
        ([(0.0, "r0"), (0.3, "r1"), (1.0, "r1"), (1.1, "r0")], [(0.0, "r0"), (1.0, "r1")]),
        # One router saw both, the other only the second.
        ([(0.0, "r0"), (1.0, "r0"), (1.1, "r1")], [(0.0, "r0"), (1.0, "r0")]),
        # Too late to be the same.
        ([(0.0, "r0"), (7.0, "r1")], [(0.0, "r0"), (7.0, "r1")]),
    ],
)
def test_what_several_sources_have_seen_is_one_event_and_what_one_tells_twice_is_two(
    events: list[tuple[float, str]], kept: list[tuple[float, str]]
) -> None:
    shown = merged([seen(at, source) for at, source in reversed(events)])
    assert [(event.at, event.source) for event in shown] == kept


def test_a_watcher_is_told_once_of_what_two_routers_have_seen() -> None:
    events = [seen(100.0, "r0"), seen(100.3, "r1"), seen(101.0, "r0", "another")]
    watched, told = Watched([]), []
    for tenths in range(1000, 1300):
        now = tenths / 10
        shown = merged([its for its in events if now - Watched.SINCE_S <= its.at <= now])
        told += [event.id for event in watched.news(shown, now)]
    assert told == ["100.0-r0", "101.0-r0"]


class NobodyThere:
    """No worker can be dialled."""

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> Any:
        raise LinkBrokenError("nobody there")


async def test_what_becomes_of_a_host_is_told_though_it_has_lost_workers_before() -> None:
    async with Router(RouterConfig(), NobodyThere()) as router:

        def events(state: str, *lost: str) -> list[tuple[str, str]]:
            n_before = len(told(router.operations.events))
            host = cluster_pb2.HostStatus(name="node-a", state=state, lost=lost)
            report = cluster_pb2.SuperviseRequest(controller_id="c", hosts=[host])
            router.operations.supervise(report)
            page = router.operations.events.page(admin_pb2.ListEventsRequest())
            return [(event.kind, event.text) for event in page.events[n_before:]]

        up = ("host.up", "host node-a is up")
        assert events("up") == [up]
        assert events("up", "d0") == [("host.lost", "host node-a has lost d0 with an earlier pod")]
        assert events("up", "d0") == []
        assert events("silent", "d0") == [("host.silent", "host node-a is silent")]
        assert events("up", "d0", "d1") == [
            up, ("host.lost", "host node-a has lost d1 with an earlier pod"),
        ]  # fmt: skip
        assert events("up", "d1") == [], "a controller that has just begun has not heard of all"
