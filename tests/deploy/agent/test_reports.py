"""Reports of a death, of which some routers do not hear."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from twolane.deploy.agent import reports
from twolane.deploy.agent.ended import Ended
from twolane.deploy.agent.reports import Reporter
from twolane.security.tls import TlsFilesError
from twolane.v1 import cluster_pb2_grpc

DEATH = Ended("w", 1, 7, "killed by SIGKILL", "A", ("deaf:1", "heard:1"))


class FakeChannels:
    """Of credentials: a call to `deaf` is never answered, one to another router at once."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def channel(self, router: str, role: object) -> Any:
        channel = grpc.aio.insecure_channel(router)
        channel.router = router  # type: ignore[attr-defined]
        return channel

    def metadata(self, router: str) -> tuple[()]:
        return ()

    def stub(self, channel: Any) -> Any:
        async def report_gone(*_: object, **__: object) -> None:
            self.calls[channel.router] += 1
            if channel.router.startswith("deaf"):
                await asyncio.Event().wait()

        return SimpleNamespace(ReportGone=report_gone)


async def test_each_router_is_told_once_at_a_time_and_again_when_it_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = FakeChannels()
    monkeypatch.setattr(cluster_pb2_grpc, "MembershipServiceStub", channels.stub)
    reporter = Reporter("node-a", channels)  # type: ignore[arg-type]
    first = asyncio.create_task(reporter.report(DEATH))
    async with asyncio.timeout(60):
        while channels.calls.total() < 2:
            await asyncio.sleep(0.001)
        for _ in range(100):
            again = asyncio.create_task(reporter.report(DEATH))
            await asyncio.wait([again], timeout=10.0)
            assert again.done(), "it waits for the router that does not hear"
    assert channels.calls == {"deaf:1": 1, "heard:1": 101}
    assert not first.done()
    first.cancel()


async def test_a_death_is_told_once_the_certificate_can_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = FakeChannels()
    monkeypatch.setattr(cluster_pb2_grpc, "MembershipServiceStub", channels.stub)
    monkeypatch.setattr(reports, "_PAUSE_S", 0.01)
    n_reads = 0

    def unreadable_at_first(router: str, role: object) -> Any:
        nonlocal n_reads
        n_reads += 1
        if n_reads < 3:
            raise TlsFilesError("node-a.crt cannot be read")
        return channels.channel(router, role)

    replaced = SimpleNamespace(channel=unreadable_at_first, metadata=channels.metadata)
    death = replace(DEATH, routers=("heard:1",))
    async with asyncio.timeout(60):
        await Reporter("node-a", replaced).report(death)  # type: ignore[arg-type]
    assert (n_reads, channels.calls) == (3, {"heard:1": 1})
