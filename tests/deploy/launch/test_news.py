"""Each death of a process is an event that a router remembers, even if the router was killed that
heard of it."""

from __future__ import annotations

import pytest

from tests.deploy.supervised import Scene
from tests.deploy.supervised import scene as scene
from twolane.deploy.launch.events import Event, Kind, News
from twolane.router.operators.event_log import EventLog
from twolane.v1 import admin_pb2


def died(name: str, epoch: int = 0) -> Event:
    return Event(kind=Kind.DIED, name=name, epoch=epoch, text="killed by SIGKILL")


def tell(news: News, router: EventLog) -> None:
    """One call that the router answers."""
    router.take_in(news.to_tell())
    news.heard()


def deaths_at(router: EventLog) -> list[str]:
    page = router.page(admin_pb2.ListEventsRequest(kinds=["process"], page_size=1_000))
    return [event.text for event in page.events if event.kind == "process.died"]


def test_a_new_router_is_told_what_the_one_before_had_heard() -> None:
    news, routers = News("controller"), [EventLog("router-0") for _ in range(3)]
    for router in routers:
        news.note(Event(kind=Kind.STARTED, name="router-0"))
        tell(news, router)
        assert not news.unheard
        news.note(died("router-0"))
    news.note(Event(kind=Kind.STARTED, name="router-0"))
    last = EventLog("router-0")
    tell(news, last)
    assert deaths_at(last) == ["router-0 died: killed by SIGKILL"] * 3


def test_another_router_is_told_when_the_one_that_had_heard_does_not_answer() -> None:
    news, first, second = News("controller"), EventLog("router-0"), EventLog("router-1")
    news.note(died("decode-0", epoch=0xA))
    tell(news, first)
    news.tell_again()  # a call has failed
    tell(news, second)
    assert deaths_at(second) == ["decode-0 (000000000000000a) died: killed by SIGKILL"]


def test_a_router_that_has_them_takes_each_once() -> None:
    news, router = News("controller"), EventLog("router-0")
    for n in range(250):
        news.note(died("decode-0", epoch=n + 1))
        tell(news, router)
        news.tell_again()
        tell(news, router)
    assert len(deaths_at(router)) == 250
    news.note(Event(kind=Kind.STARTED, name="decode-1", epoch=7))  # of a worker: nothing is lost
    assert not news.unheard


def test_what_is_told_while_a_router_starts_is_told_to_the_new_one() -> None:
    news, router = News("controller"), EventLog("router-0")
    news.note(died("decode-0", epoch=0xA))
    news.to_tell()  # the one that ends takes them, and its answer comes late
    news.note(Event(kind=Kind.STARTED, name="router-0"))
    news.heard()
    tell(news, router)
    assert len(deaths_at(router)) == 1


def test_what_is_decided_of_a_worker_is_a_sentence() -> None:
    news = News("controller")
    news.note(Event(kind=Kind.SCALED, name="decode-1", text="is to be killed"))
    assert [event.text for event in news.unheard] == ["decode-1: is to be killed"]


@pytest.mark.parametrize("fails", [True, False])
async def test_deaths_are_told_again_after_a_call_that_failed(scene: Scene, fails: bool) -> None:
    def deaths() -> int:
        return sum("killed by SIGSEGV" in text for text in scene.admin.told)

    async with scene.up():
        scene.launcher.kill(scene.launcher.running("decode-0")[0][0], "killed by SIGSEGV")
        await scene.until(lambda: deaths() == 1)
        if fails:
            scene.admin.is_deaf = True
            await scene.until(lambda: scene.admin.calls_failed > 0)
            scene.admin.is_deaf = False
        else:
            scene.launcher.kill(scene.launcher.running("router-0")[0][0])
        await scene.until(lambda: deaths() >= 2)
