"""The router's end of the session with one worker: dial, open, receive, redial.

dial ── Open{epoch} ──> Opened ──> messages … ──> broken ──> dial (at once)
  ^                        │                                     │
  └──── backoff <── refused (no listener, another epoch, no answer in time)
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from twolane.router.config import MembershipConfig
from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import worker_pb2

log = logging.getLogger(__name__)

WorkerLink = Link[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
# The first redial is immediate; each further one waits longer, unless a session lasted this long.
STABLE_S = 1.0


class WorkerDialer(Protocol):
    """How the router connects to a worker."""

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> WorkerLink:
        """Open a link to the worker's Session. Raises `LinkBrokenError` if that fails; may also
        return a link that breaks at the first receive."""
        ...


class SessionListener(Protocol):
    """Receives a session's events, on the event loop."""

    def session_opened(self, epoch: int, first: worker_pb2.SessionResponse) -> None: ...

    def session_message(self, epoch: int, message: worker_pb2.SessionResponse) -> None: ...

    def session_broken(self, epoch: int) -> None: ...

    def session_refused(self, epoch: int) -> None: ...


class WorkerSession:
    """Keeps a session to one worker until cancelled. `link` is set while the session is open."""

    def __init__(
        self,
        address: worker_pb2.WorkerAddress,
        router: worker_pb2.RouterAddress,
        config: MembershipConfig,
        dialer: WorkerDialer,
        listener: SessionListener,
    ) -> None:
        self.link: WorkerLink | None = None
        self._told_why = ""
        self._address = address
        self._router = router  # its addresses may be set later, when its doors are open
        self._config = config
        self._dialer = dialer
        self._listener = listener

    async def run(self) -> None:
        epoch = self._address.epoch
        loop = asyncio.get_running_loop()
        delay_s = 0.0
        while True:
            dialled_at = loop.time()
            was_open = await self._one_session()
            if was_open:
                self._listener.session_broken(epoch)
            else:
                self._listener.session_refused(epoch)
            if was_open and loop.time() - dialled_at > STABLE_S:
                delay_s = 0.0
            await asyncio.sleep(delay_s)
            delay_s = min(max(2 * delay_s, self._config.redial_min_s), self._config.redial_max_s)

    def _opening(self) -> worker_pb2.SessionRequest:
        return worker_pb2.SessionRequest(
            open=worker_pb2.Open(
                router_id=self._router.router_id,
                router_epoch=self._router.router_epoch,
                worker_epoch=self._address.epoch,
                router=self._router,
            )
        )

    async def _one_session(self) -> bool:
        """Run one session until it is over. Returns whether it was ever open."""
        is_open = False
        link: WorkerLink | None = None
        try:
            async with asyncio.timeout(self._config.open_timeout_s):
                link = await self._dialer.dial_worker(self._address)
                link.send(self._opening())
                first = await link.receive()
            if first.opened.worker.epoch != self._address.epoch:
                self._tell_why("another incarnation of it answers")
                return False
            is_open = True
            self._told_why = ""
            self.link = link
            self._listener.session_opened(self._address.epoch, first)
            while True:
                self._listener.session_message(self._address.epoch, await link.receive())
        except (LinkBrokenError, TimeoutError) as error:
            if not is_open:
                self._tell_why(str(error) or "no answer in time")
            return is_open
        finally:
            self.link = None
            if link is not None:
                link.close()

    def _tell_why(self, why: str) -> None:
        """Log why there is no session, such as another router with our id, or a worker that does
        not answer."""
        if why != self._told_why:
            self._told_why = why
            log.warning("no session with worker %s: %s", self._address.worker_id, why)
