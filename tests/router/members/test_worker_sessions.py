"""Sessions by epoch: which are ended, and what becomes of a command without one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.router.members.test_session import WANTED, Answering, Listener
from twolane.router.background import Background
from twolane.router.config import MembershipConfig
from twolane.router.members.membership import Membership
from twolane.router.members.session import WorkerLink
from twolane.router.members.worker_sessions import WorkerSessions
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import cluster_pb2, worker_pb2

WORKER = worker_pb2.WorkerAddress(worker_id="w", epoch=WANTED, endpoint="w:1")
COMMAND = worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat())


class Counting(Answering):
    """Counts how often it is dialled."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.n_dials = 0

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> WorkerLink:
        self.n_dials += 1
        return await super().dial_worker(address)


def play(
    script: Callable[[WorkerSessions, Counting], Awaitable[None]], answers: int = WANTED
) -> None:
    async def main() -> None:
        dialer = Counting(answers)
        router = worker_pb2.RouterAddress(router_id="router", router_epoch=1)
        async with Background() as tasks:
            await script(
                WorkerSessions(router, MembershipConfig(), dialer, Listener(), tasks), dialer
            )

    with virtual_time_runner() as runner:
        runner.run(main())


def test_session_of_an_epoch_that_is_gone_is_closed_and_one_that_is_not_goes_on() -> None:
    async def script(sessions: WorkerSessions, dialer: Counting) -> None:
        members = Membership(MembershipConfig())
        members.announce(cluster_pb2.AnnounceRequest(worker=WORKER), 0.0)
        sessions.open(WORKER)
        await asyncio.sleep(0.1)
        (session, task) = sessions._sessions[WANTED]
        sessions.close_gone(members)
        link = session.link
        assert link is not None
        members.report_gone(WANTED, 1.0)
        sessions.close_gone(members)
        await asyncio.wait([task])
        assert session.link is None
        await asyncio.sleep(60.0)
        assert dialer.n_dials == 1

    play(script)


def test_command_without_an_open_session_is_lost_without_an_error() -> None:
    async def script(sessions: WorkerSessions, dialer: Counting) -> None:
        sessions.send(WANTED, COMMAND)
        sessions.open(WORKER)
        sessions.send(WANTED, COMMAND)  # which is being dialled
        await asyncio.sleep(0.1)
        sessions.send(WANTED, COMMAND)  # where another incarnation answers
        assert dialer.n_dials > 0

    play(script, answers=WANTED + 1)
