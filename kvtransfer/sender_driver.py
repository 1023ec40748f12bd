"""The asyncio edge of a `Sender`: links, ticks, wake-ups. Works under virtual time too.

driver = SenderDriver(sender, hello, dial, open_outlet, on_events)
async with asyncio.TaskGroup() as tasks:
    tasks.create_task(driver.run())            # until cancelled
    driver.connect(epoch, "host:port")         # before sender.open()
    sender.open(...); driver.flush()           # after any call into the sender
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kvtransfer.config import LeaseConfig
from kvtransfer.events import SenderEvent
from kvtransfer.negotiation import paging_to
from kvtransfer.peer_links import PeerLinks
from kvtransfer.sender import Sender
from kvtransfer.stopping import StoppingOutlets
from kvtransfer.transports.base import Outlet
from kvtransfer.wakeup import Wakeup
from twolane.layout import LayoutError
from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import transfer_pb2, worker_pb2

PeerLink = Link[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse]
Dial = Callable[[str], Awaitable[PeerLink]]  # raises LinkBrokenError when nobody answers
OpenOutlet = Callable[[transfer_pb2.ReceiverHello], Outlet]  # raises OSError when it cannot

_log = logging.getLogger(__name__)


class SenderDriver:
    """See the module's docstring. Needs a running loop from `run` on."""

    def __init__(
        self,
        sender: Sender,
        hello: transfer_pb2.SenderHello,
        dial: Dial,
        open_outlet: OpenOutlet,
        on_events: Callable[[list[SenderEvent]], None],
        lease: LeaseConfig | None = None,
    ) -> None:
        self._sender = sender
        self._hello = hello
        self._dial = dial
        self._open_outlet = open_outlet
        self._lease = lease or LeaseConfig()
        self._endpoints: dict[int, str] = {}  # of every peer that a task cares for
        self._links: PeerLinks[
            transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse, SenderEvent
        ] = PeerLinks(sender, on_events)
        self._outlets: dict[int, Outlet] = {}
        self._stopping = StoppingOutlets()
        self._failed: dict[int, dict[str, str]] = {}  # by receiver: transport -> what it failed of
        self._tasks: asyncio.TaskGroup | None = None

    def connect(self, epoch: int, endpoint: str) -> None:
        """Keep a link to that receiver: dial, say hello, redial with backoff. A repeat is fine.

        A peer whose link is down and that nothing waits for is forgotten.
        """
        if epoch not in self._endpoints:
            self._endpoints[epoch] = endpoint
            if self._tasks is not None:
                self._tasks.create_task(self._keep(epoch))

    @property
    def transports(self) -> list[worker_pb2.PeerTransport]:
        """How pages travel, of the links that are open."""
        return self._links.transports

    def flush(self) -> None:
        """Send what the sender has to say, deliver its events. Call after any use of the sender."""
        self._links.flush()

    async def run(self) -> None:
        """Until cancelled. Closes links and outlets at the end, and waits for these a moment."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for epoch in self._endpoints:
                    self._tasks.create_task(self._keep(epoch))
                await self._tick_forever()
        finally:
            self._tasks = None
            for epoch, outlet in self._outlets.items():
                self._stopping.add(epoch, outlet, self._now())
            await self._stopping.wait()

    # -- inside -----------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease.retry_first_s)
            self._sender.tick(self._now())
            self.flush()
            self._stopping.look(self._now())

    async def _keep(self, epoch: int) -> None:
        """One peer's task: connected, or trying to be, as long as anything waits for it."""
        pause_s = self._lease.retry_first_s
        may_return = True
        while True:
            if may_return:
                try:
                    link = await self._dial(self._endpoints[epoch])
                except LinkBrokenError as error:
                    _log.info("receiver %x does not answer: %s", epoch, error)
                else:
                    pause_s = self._lease.retry_first_s
                    may_return = await self._use(epoch, link)
            if self._sender.is_idle(epoch):
                break  # transfers were retargeted, or ended with their lease
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._lease.retry_most_s)
        self._sender.forget_peer(epoch)
        del self._endpoints[epoch]
        outlet = self._outlets.pop(epoch, None)
        if outlet is not None:
            self._stopping.add(epoch, outlet, self._now())

    async def _use(self, epoch: int, link: PeerLink) -> bool:
        """All of a link's life. False: there is no use in coming back."""
        try:
            return await self._talk(epoch, link)
        except LinkBrokenError as error:
            _log.info("link to receiver %x broke: %s", epoch, error)
            return True
        finally:
            link.close()
            self._links.remove(epoch, link)
            self._sender.detach_peer(epoch, self._now())

    async def _talk(self, epoch: int, link: PeerLink) -> bool:
        """Hello, then messages until the link breaks. False: there is no use in coming back."""
        link.send(transfer_pb2.ConnectRequest(hello=self._hello_to(epoch)))
        hello = (await link.receive()).hello
        if hello.epoch != epoch:
            _log.warning("receiver %x is %x by now", epoch, hello.epoch)
            return False
        if hello.refused_field:
            _log.error("receiver %s refuses: %s", hello.worker_id, hello.refused_message)
            return self._give_up(epoch, hello.refused_field)
        try:
            paging = paging_to(self._hello, hello)
        except LayoutError as error:
            _log.error("pages cannot go to receiver %s: %s", hello.worker_id, error)
            return self._give_up(epoch, f"layout.{error.field}")
        if epoch not in self._outlets:
            try:
                outlet = self._open_outlet(hello)
            except OSError as error:
                return self._fall_back(epoch, hello, error)
            self._outlets[epoch] = outlet
            outlet.set_wake(Wakeup(asyncio.get_running_loop(), self._on_wake))
        failed = self._failed.get(epoch, {})
        instead_of = "; ".join(f"{name}: {why}" for name, why in failed.items())
        self._links.add(epoch, link, hello.worker_id, hello.transport, instead_of)
        self._sender.attach_peer(epoch, self._outlets[epoch], self._now(), paging)
        self.flush()
        while True:
            message = await link.receive()
            self._sender.on_message(epoch, message, self._now())
            self.flush()

    def _hello_to(self, epoch: int) -> transfer_pb2.SenderHello:
        """Without the transports that do not work between us."""
        failed = self._failed.get(epoch, {})
        if not failed:
            return self._hello
        hello = transfer_pb2.SenderHello()
        hello.CopyFrom(self._hello)
        hello.transports[:] = [name for name in self._hello.transports if name not in failed]
        return hello

    def _fall_back(self, epoch: int, hello: transfer_pb2.ReceiverHello, error: OSError) -> bool:
        """Come back with the other transports. False: there is none."""
        self._failed.setdefault(epoch, {})[hello.transport] = str(error)
        others = self._hello_to(epoch).transports
        _log.warning(
            "pages to %s do not travel by %s (%s); next: %s",
            hello.worker_id, hello.transport, error, ", ".join(others) or "none",
        )  # fmt: skip
        if others:
            return True
        del self._failed[epoch]  # should somebody ask for it again
        return self._give_up(epoch, f"{hello.transport}: {error}")

    def _give_up(self, epoch: int, reason: str) -> bool:
        self._sender.fail_peer(epoch, reason, self._now())
        self.flush()
        return False

    def _on_wake(self) -> None:
        self._sender.poll(self._now())
        self.flush()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
