"""Drives a `Receiver` on asyncio: hellos, links, ticks, pidfds. Works under virtual time too.

driver = ReceiverDriver(receiver, identity, landings, on_events)
tasks.create_task(driver.run())                # ticks and wake-ups; until cancelled
await driver.serve(link)                       # for each incoming Connect; returns when over
receiver.expect(...); driver.flush()           # after any call into the receiver
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress

from twolane.errors import TwolaneError
from twolane.fault import Fault
from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.events import ReceiverEvent
from twolane.kvtransfer.link.done_socket import DoneSocket
from twolane.kvtransfer.link.handshake import HELLO_S, ReceiverIdentity
from twolane.kvtransfer.link.peer_links import PeerLinks
from twolane.kvtransfer.link.process_identity import open_pidfd
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.transport import Landing
from twolane.kvtransfer.wakeup import Wakeup
from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import transfer_pb2, worker_pb2

PeerLink = Link[transfer_pb2.ConnectResponse, transfer_pb2.ConnectRequest]

_log = logging.getLogger(__name__)


class ReceiverDriver:
    """See the module's docstring. The caller closes the landings (by transport name)."""

    def __init__(
        self,
        receiver: Receiver,
        identity: ReceiverIdentity,
        landings: Mapping[str, Landing],
        on_events: Callable[[list[ReceiverEvent]], None],
        lease: LeaseConfig | None = None,
        *,
        done_socket: DoneSocket | None = None,
    ) -> None:
        """`done_socket`: where senders of this host may send DONE."""
        self._receiver = receiver
        self._identity = identity
        self._landings = landings
        self._lease = lease or LeaseConfig()
        self._done_socket = done_socket
        self._links: PeerLinks[
            transfer_pb2.ConnectResponse, transfer_pb2.ConnectRequest, ReceiverEvent
        ] = PeerLinks(receiver, on_events)
        self._pidfds: dict[int, int] = {}  # sender epoch -> pidfd
        self._fault = Fault()

    @property
    def transports(self) -> list[worker_pb2.PeerTransport]:
        """How pages travel over each open link."""
        return self._links.transports

    def flush(self) -> None:
        """Send the receiver's messages, deliver its events. Call after any use of it."""
        self._links.flush()

    async def run(self) -> None:
        """Runs until cancelled, or until an invariant breaks in any link or callback."""
        wakeup = Wakeup(asyncio.get_running_loop(), self._on_wake, self._fault)
        for landing in self._landings.values():
            landing.set_wake(wakeup)
        done_socket = self._done_socket
        try:
            with nullcontext() if done_socket is None else done_socket.listening(self._on_done):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._fault.wait())
                    await self._tick_forever()
        finally:
            for epoch in list(self._pidfds):
                self._unwatch(epoch)

    async def serve(self, link: PeerLink) -> None:
        """Exchange hellos, then handle messages until the link breaks; closes it. Raises
        `TwolaneError` for a malformed message. Any other error it raises, `run` raises too."""
        with self._fault.watch(TwolaneError):
            await self._serve(link)

    # -- inside -----------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease.retry_first_s)
            self._receiver.tick(self._now())
            self.flush()

    async def _serve(self, link: PeerLink) -> None:
        epoch = 0
        answer = transfer_pb2.ReceiverHello()
        try:
            async with asyncio.timeout(HELLO_S):
                hello = (await link.receive()).hello
            answer = self._identity.answer(hello, self._landings)
            if not hello.epoch or not self._watch(hello, answer.transport):
                return
            self._offer_done_socket(hello, answer)
            link.send(transfer_pb2.ConnectResponse(hello=answer))
            if hello.receiver_epoch not in (0, answer.epoch):  # guard: epoch
                await self._wait_broken(
                    link
                )  # meant for an earlier epoch of this worker; a link to this epoch stays
                return
            if answer.refused_field:
                _log.error("sender %s refused: %s", hello.worker_id, answer.refused_message)
                await self._wait_broken(link)
                return
            epoch = hello.epoch
            self._links.add(epoch, link, hello.worker_id, answer.transport)
            self._receiver.attach_peer(epoch, self._landings[answer.transport], self._now())
            self.flush()
            while True:
                self._on_message(epoch, await link.receive())
        except LinkBrokenError as error:
            _log.info("link from sender %x is over: %s", epoch, error)
        except TimeoutError:
            _log.warning("a link said no hello within %g s", HELLO_S)
        finally:
            link.close()
            if self._done_socket is not None:
                self._done_socket.forget(answer.done_key)  # guard: over with its link
            if self._links.remove(epoch, link):  # else a newer link took its place
                self._receiver.detach_peer(epoch, self._now())
                self.flush()

    def _offer_done_socket(
        self, hello: transfer_pb2.SenderHello, answer: transfer_pb2.ReceiverHello
    ) -> None:
        """Tell a sender of this host where else it may send DONE."""
        ours = self._done_socket
        is_near = hello.host == self._identity.host
        if ours is not None and ours.address and is_near:  # guard: one host
            answer.done_address = ours.address
            answer.done_key = ours.key_for(hello.epoch)

    async def _wait_broken(self, link: PeerLink) -> None:
        """Give a refused sender one heartbeat to read why and hang up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(link.receive(), self._lease.heartbeat_s)

    def _watch(self, hello: transfer_pb2.SenderHello, transport: str) -> bool:
        """Watch a process that writes into our memory: its end is proof. False if it has ended, or
        cannot be watched now: its next link may do better."""
        writes = transport in self._landings and self._landings[transport].sender_writes
        if not writes or hello.epoch in self._pidfds:
            return True
        try:
            pidfd = open_pidfd(hello.pid, hello.pid_start_ticks)
        except ProcessLookupError:
            return False
        except OSError as error:  # no descriptor is free
            _log.warning("sender %s cannot be watched: %s", hello.worker_id, error)
            return False
        self._pidfds[hello.epoch] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._on_ended, hello.epoch)
        return True

    def _unwatch(self, epoch: int) -> None:
        pidfd = self._pidfds.pop(epoch)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)

    def _on_ended(self, epoch: int) -> None:
        with self._fault.watch():
            self._unwatch(epoch)
            self._receiver.peer_gone(epoch, self._now())
            self.flush()

    def _on_message(self, epoch: int, message: transfer_pb2.ConnectRequest) -> None:
        self._receiver.on_message(epoch, message, self._now())
        self._on_wake()  # a landing may have answered already

    def _on_done(self, epoch: int, message: transfer_pb2.ConnectRequest) -> None:
        with self._fault.watch():
            self._on_message(epoch, message)

    def _on_wake(self) -> None:
        self._receiver.poll(self._now())
        self.flush()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
