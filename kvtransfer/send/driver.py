"""Drives a `Sender` on asyncio: links, ticks, wake-ups. Works under virtual time too.

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
from dataclasses import dataclass

from twolane.fault import Fault
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.events import SenderEvent
from twolane.kvtransfer.link.done_socket import done_sender
from twolane.kvtransfer.link.handshake import HELLO_S, paging_to
from twolane.kvtransfer.link.peer_links import PeerLinks
from twolane.kvtransfer.send.closing_outlets import StoppingOutlets
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.transport import Outlet
from twolane.kvtransfer.wakeup import Wakeup
from twolane.layout import LayoutError
from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import transfer_pb2, worker_pb2

PeerLink = Link[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse]
Dial = Callable[[str], Awaitable[PeerLink]]  # raises LinkBrokenError if there is no answer
OpenOutlet = Callable[[transfer_pb2.ReceiverHello], Outlet]  # raises OSError when it cannot
IsWanted = Callable[[int], bool]  # will there be transfers to that receiver?

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Way:
    """The open outlet to one receiver, of the transport that its hello chose."""

    outlet: Outlet
    transport: str


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why and when a transport could not be opened."""

    why: str
    at: float


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
        *,
        is_wanted: IsWanted = lambda epoch: False,
        retry_transport_s: float = 60.0,
    ) -> None:
        """`retry_transport_s`: how long after a better transport failed it is tried again, when
        nothing is under way to that receiver."""
        self._is_wanted = is_wanted
        self._retry_transport_s = retry_transport_s
        self._sender = sender
        self._hello = hello
        self._dial = dial
        self._open_outlet = open_outlet
        self._lease = lease or LeaseConfig()
        self._endpoints: dict[int, str] = {}  # of every peer that has a task
        self._links: PeerLinks[
            transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse, SenderEvent
        ] = PeerLinks(sender, on_events)
        self._asked: set[int] = set()  # receivers that `connect` named since their task last looked
        self._outlets: dict[int, _Way] = {}
        self._stopping = StoppingOutlets()
        self._failed: dict[int, dict[str, _Failure]] = {}  # by receiver and transport
        self._tasks: asyncio.TaskGroup | None = None
        self._fault = Fault()

    def connect(self, epoch: int, endpoint: str) -> None:
        """Keep a link to that receiver: dial, exchange hellos, redial with backoff. Idempotent.

        A peer is forgotten when its link is down and no transfer waits for it.
        """
        self._asked.add(epoch)
        if epoch not in self._endpoints:
            self._endpoints[epoch] = endpoint
            if self._tasks is not None:
                self._tasks.create_task(self._keep(epoch))

    @property
    def transports(self) -> list[worker_pb2.PeerTransport]:
        """How pages travel over each open link."""
        return self._links.transports

    def flush(self) -> None:
        """Send the sender's messages, deliver its events. Call after any use of the sender."""
        self._links.flush()

    async def run(self) -> None:
        """Runs until cancelled, or until an invariant breaks. Then it closes links and outlets, and
        waits for the outlets for a moment."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._fault.wait())
                for epoch in self._endpoints:
                    self._tasks.create_task(self._keep(epoch))
                await self._tick_forever()
        finally:
            self._tasks = None
            for epoch, way in self._outlets.items():
                self._stopping.add(epoch, way.outlet, self._now())
            await self._stopping.wait()

    # -- inside -----------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease.retry_first_s)
            self._sender.tick(self._now())
            self.flush()
            self._stopping.look(self._now())
            self._look_for_better_ways(self._now())

    async def _keep(self, epoch: int) -> None:
        """The task of one peer: keeps a link to it while a transfer waits for it."""
        pause_s = self._lease.retry_first_s
        while self._is_needed(epoch):
            if not self._needs_link(epoch):
                await asyncio.sleep(self._lease.retry_first_s)
                continue
            self._asked.discard(epoch)
            try:
                link = await self._dial(self._endpoints[epoch])
            except LinkBrokenError as error:
                _log.info("receiver %x does not answer: %s", epoch, error)
            else:
                if await self._use(epoch, link):
                    pause_s = self._lease.retry_first_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._lease.retry_most_s)
        # Transfers were retargeted, or ended with their lease.
        self._forget_way(epoch)
        del self._endpoints[epoch]

    def _is_needed(self, epoch: int) -> bool:
        """`connect` asked for it, or a transfer waits for it."""
        is_idle = self._sender.is_idle(epoch) and epoch not in self._asked
        return not is_idle or self._is_wanted(epoch)

    def _needs_link(self, epoch: int) -> bool:
        """False if only sends that their transport has not completed are left: no message to the
        receiver would end these."""
        is_asked = epoch in self._asked or self._is_wanted(epoch)
        return is_asked or self._sender.has_messages(epoch)

    def _forget_way(self, epoch: int) -> None:
        """Close the outlet of an idle receiver: the next link may choose among all transports."""
        self._sender.forget_peer(epoch)
        self._failed.pop(epoch, None)
        way = self._outlets.pop(epoch, None)
        if way is not None:
            self._stopping.add(epoch, way.outlet, self._now())

    def _look_for_better_ways(self, now: float) -> None:
        """Reopen links of idle receivers whose better transport failed `retry_transport_s` ago."""
        for epoch, failed in list(self._failed.items()):
            is_late = all(now >= one.at + self._retry_transport_s for one in failed.values())
            if is_late and self._links.has(epoch) and self._sender.is_idle(epoch):
                self._forget_way(epoch)
                self._links.close(epoch)

    async def _use(self, epoch: int, link: PeerLink) -> bool:
        """Use a link until it breaks. False if no pages could go over it."""
        try:
            await self._talk(epoch, link)
        except LinkBrokenError as error:
            _log.info("link to receiver %x broke: %s", epoch, error)
        finally:
            link.close()
            was_open = self._links.remove(epoch, link)
            self._sender.detach_peer(epoch, self._now())
        return was_open

    async def _talk(self, epoch: int, link: PeerLink) -> None:
        """Exchange hellos, then handle messages until the link breaks. Returns if pages cannot go
        over it: transfers that wait fail, and new ones fail at once until a later link works."""
        link.send(transfer_pb2.ConnectRequest(hello=self._hello_to(epoch)))
        try:
            async with asyncio.timeout(HELLO_S):
                hello = (await link.receive()).hello
        except TimeoutError:
            _log.warning("receiver %x says no hello", epoch)
            return
        if hello.epoch != epoch:
            _log.warning("receiver %x is %x by now", epoch, hello.epoch)
            self._give_up(epoch, reasons.EPOCH)
            return
        if hello.refused_field:
            _log.error("receiver %s refuses: %s", hello.worker_id, hello.refused_message)
            self._give_up(epoch, hello.refused_field)
            return
        try:
            paging = paging_to(self._hello, hello)
        except LayoutError as error:
            _log.error("pages cannot go to receiver %s: %s", hello.worker_id, error)
            self._give_up(epoch, f"layout.{error.field}")
            return
        if epoch not in self._outlets:
            try:
                outlet = self._open_outlet(hello)
            except OSError as error:
                self._fall_back(epoch, hello, error)
                return
            self._outlets[epoch] = _Way(outlet, hello.transport)
            outlet.set_wake(Wakeup(asyncio.get_running_loop(), self._on_wake, self._fault))
        failed = self._failed.get(epoch, {})
        instead_of = "; ".join(f"{name}: {one.why}" for name, one in failed.items())
        self._links.add(epoch, link, hello.worker_id, hello.transport, instead_of)
        with done_sender(hello) as try_send_done:
            self._sender.attach_peer(
                epoch,
                self._outlets[epoch].outlet,
                self._now(),
                paging,
                takes_last_chunk=hello.takes_last_chunk,
                try_send_done=try_send_done,
            )
            self.flush()
            while True:
                message = await link.receive()
                self._sender.on_message(epoch, message, self._now())
                self.flush()

    def _hello_to(self, epoch: int) -> transfer_pb2.SenderHello:
        """Our hello without the transports that failed; with only the open one, if there is one."""
        way = self._outlets.get(epoch)
        failed = self._failed.get(epoch, {})
        ours = self._hello.transports
        names = [name for name in ours if name not in failed] if way is None else [way.transport]
        hello = transfer_pb2.SenderHello()
        hello.CopyFrom(self._hello)
        hello.receiver_epoch = epoch
        hello.transports[:] = names
        return hello

    def _fall_back(self, epoch: int, hello: transfer_pb2.ReceiverHello, error: OSError) -> None:
        """Leave this transport out of the next hello. If none is left, fail what waits, and offer
        all of them again later."""
        failure = _Failure(str(error), self._now())
        self._failed.setdefault(epoch, {})[hello.transport] = failure
        others = self._hello_to(epoch).transports
        _log.warning(
            "pages to %s do not travel by %s (%s); next: %s",
            hello.worker_id, hello.transport, error, ", ".join(others) or "none",
        )  # fmt: skip
        if not others:
            del self._failed[epoch]
            self._give_up(epoch, f"{hello.transport}: {error}")

    def _give_up(self, epoch: int, reason: str) -> None:
        self._sender.fail_peer(epoch, reason, self._now())
        self.flush()

    def _on_wake(self) -> None:
        self._sender.poll(self._now())
        self.flush()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
