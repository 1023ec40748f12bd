"""The sessions to workers: one for each member."""

from __future__ import annotations

import asyncio

from twolane.router.background import Background
from twolane.router.config import MembershipConfig
from twolane.router.members.member import MemberState
from twolane.router.members.membership import Membership
from twolane.router.members.session import SessionListener, WorkerDialer, WorkerSession
from twolane.rpc.link import LinkBrokenError
from twolane.v1 import worker_pb2


class WorkerSessions:
    """The sessions by epoch. They run in `tasks`, and report to `listener`."""

    def __init__(
        self,
        router: worker_pb2.RouterAddress,
        config: MembershipConfig,
        dialer: WorkerDialer,
        listener: SessionListener,
        tasks: Background,
    ) -> None:
        self._router = router
        self._config = config
        self._dialer = dialer
        self._listener = listener
        self._tasks = tasks
        self._sessions: dict[int, tuple[WorkerSession, asyncio.Task[None]]] = {}

    def open(self, worker: worker_pb2.WorkerAddress) -> None:
        """Start a session that redials until `close`, unless this epoch has one already."""
        self.close(worker.epoch)
        session = WorkerSession(worker, self._router, self._config, self._dialer, self._listener)
        task = self._tasks.start(session.run(), name=f"session-{worker.epoch:x}")
        self._sessions[worker.epoch] = session, task

    def close(self, epoch: int) -> None:
        """End the session. Does nothing if there is none."""
        if epoch in self._sessions:
            _, task = self._sessions.pop(epoch)
            task.cancel()

    def close_gone(self, members: Membership) -> None:
        """End the sessions of epochs that are not members any more."""
        for epoch in members.take_gone():
            member = members.get(epoch)
            if member is None or member.state is MemberState.GONE:
                self.close(epoch)

    def send(self, epoch: int, command: worker_pb2.SessionRequest) -> None:
        """Send a command. It is lost if the session is not open: the dispatcher sends again when it
        is."""
        link = self._sessions[epoch][0].link if epoch in self._sessions else None
        if link is None:
            return
        try:
            link.send(command)
        except LinkBrokenError:
            return  # the session's receiver sees the break, too, and reports it
