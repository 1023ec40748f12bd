"""The router's end of a session: who answers the dial."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from twolane.router.config import MembershipConfig
from twolane.router.members.session import WorkerLink, WorkerSession
from twolane.testing.links import MemoryLink, link_pair
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import worker_pb2

WANTED, OTHER = 7, 8


class Listener:
    """Keeps the names of what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def session_opened(self, epoch: int, first: worker_pb2.SessionResponse) -> None:
        self.heard.append("opened")

    def session_message(self, epoch: int, message: worker_pb2.SessionResponse) -> None:
        self.heard.append("message")

    def session_broken(self, epoch: int) -> None:
        self.heard.append("broken")

    def session_refused(self, epoch: int) -> None:
        self.heard.append("refused")


class Answering:
    """Whoever is dialled says that it is a worker of this epoch."""

    def __init__(self, epoch: int) -> None:
        self._opened = worker_pb2.Opened(worker=worker_pb2.WorkerAddress(epoch=epoch))

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> WorkerLink:
        here: MemoryLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
        there: MemoryLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest]
        here, there = link_pair(0.001)
        there.send(worker_pb2.SessionResponse(opened=self._opened))
        return here


def heard_of(epoch: int) -> set[str]:
    """All that a session with WANTED tells while a worker of `epoch` answers."""
    listener = Listener()
    address = worker_pb2.WorkerAddress(worker_id="w", epoch=WANTED)
    router = worker_pb2.RouterAddress(router_id="router", router_epoch=1)
    session = WorkerSession(address, router, MembershipConfig(), Answering(epoch), listener)

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.run()

    with virtual_time_runner() as runner:
        runner.run(main())
    return set(listener.heard)


def test_session_opens_with_the_incarnation_that_was_dialled() -> None:
    assert heard_of(WANTED) == {"opened"}


def test_worker_that_was_started_anew_at_the_address_is_not_taken_for_the_former_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert heard_of(OTHER) == {"refused"}
    (record,) = caplog.records
    assert record.getMessage() == "no session with worker w: another incarnation of it answers"
