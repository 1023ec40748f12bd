"""A worker's transfers: out of its prefill role, into its decode role.

The drivers of kvtransfer do the work; this connects them to the roles. Transfer events go to the
role's inbox and wake the step loop, which lets the role act between two steps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twolane.kvtransfer.events import ReceiverEvent, SenderEvent
from twolane.kvtransfer.link.done_socket import DoneSocket
from twolane.kvtransfer.link.handshake import HOST, ReceiverIdentity, sender_hello
from twolane.kvtransfer.link.process_identity import host_identity
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.receive.driver import PeerLink, ReceiverDriver
from twolane.kvtransfer.send.driver import Dial, OpenOutlet, SenderDriver
from twolane.kvtransfer.transport import Landing
from twolane.v1 import worker_pb2
from twolane.worker.context import WorkerContext
from twolane.worker.role import DecodeSide, PrefillSide, Roles


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a worker reaches its peers, as composed by its caller: control streams, and the
    transports for page bytes. The caller closes the landings after the worker."""

    dial: Dial  # endpoint -> a new stream to that worker's TransferService
    open_outlet: OpenOutlet  # opens a transport to the receiver that sent this hello
    landings: Mapping[str, Landing]  # by transport name; where page bytes arrive
    transports: tuple[str, ...]  # for outgoing pages, best first
    makes_dtypes: tuple[str, ...] = ()  # that outlets can convert our pages to, if any
    memory: str = HOST  # where the pages are: some transports need the same kind on both sides
    page_lane: PageLane = PageLane.PLAIN  # what protects tcp connections
    trusted_fabric: bool = False  # nixl may be used between hosts
    done_socket: DoneSocket | None = None  # where senders of this host may send DONE


class Peers:
    """`connect`, `serve` and `flush` may be called at any time on the event loop."""

    def __init__(
        self, context: WorkerContext, roles: Roles, wire: Wiring, *, wake: Callable[[], None]
    ) -> None:
        self._wake = wake
        self._out = None if roles.prefill is None else self._open_out(context, roles.prefill, wire)
        self._in = None if roles.decode is None else self._open_in(context, roles.decode, wire)
        self._decode = roles.decode
        self._landings = wire.landings
        self._done_socket = wire.done_socket

    def connect(self, peer: worker_pb2.WorkerAddress) -> None:
        """Keep a stream to that decode worker for as long as there are transfers to it."""
        assert self._out is not None, "no prefill role here"
        self._out.connect(peer.epoch, peer.endpoint)

    async def serve(self, link: PeerLink) -> bool:
        """Serve a prefill worker's stream until it is over. False: there is no decode role here."""
        if self._in is None:
            return False
        await self._in.serve(link)
        return True

    def flush(self, now: float) -> None:
        """Pages may have been freed, or commands received: grant, send, deliver."""
        if self._decode is not None and self._decode.receiver.n_queued:
            self._decode.receiver.tick(now)
        for driver in (self._in, self._out):
            if driver is not None:
                driver.flush()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for driver in (self._in, self._out):
                if driver is not None:
                    tasks.create_task(driver.run())

    @property
    def dropped(self) -> Counter[str]:
        """Frames, connections and datagrams that were refused, by reason."""
        refused = [landing.dropped for landing in self._landings.values()]
        if self._done_socket is not None:
            refused.append(self._done_socket.dropped)
        return sum(refused, Counter())

    @property
    def transports(self) -> list[worker_pb2.PeerTransport]:
        """The transport used to and from each peer."""
        both: list[worker_pb2.PeerTransport] = []
        for driver in (self._in, self._out):
            if driver is not None:
                both += driver.transports
        return both

    def _open_out(self, context: WorkerContext, role: PrefillSide, wire: Wiring) -> SenderDriver:
        def on_events(events: list[SenderEvent]) -> None:
            role.on_transfers(events)
            self._wake()

        spec = context.spec
        hello = sender_hello(
            context.worker_id,
            context.epoch,
            spec.fingerprint,
            spec.layout,
            wire.transports,
            wire.makes_dtypes,
            memory=wire.memory,
            page_lane=wire.page_lane,
        )
        return SenderDriver(
            role.sender,
            hello,
            wire.dial,
            wire.open_outlet,
            on_events,
            role.lease,
            is_wanted=role.sends_to,
        )

    def _open_in(self, context: WorkerContext, role: DecodeSide, wire: Wiring) -> ReceiverDriver:
        def on_events(events: list[ReceiverEvent]) -> None:
            role.on_transfers(events)
            self._wake()

        spec = context.spec
        identity = ReceiverIdentity(
            worker_id=context.worker_id,
            epoch=context.epoch,
            fingerprint=spec.fingerprint,
            layout=spec.layout,
            host=host_identity(),
            lease_ms=int(role.lease.lease_s * 1000),
            memory=wire.memory,
            trusted_fabric=wire.trusted_fabric,
        )
        return ReceiverDriver(
            role.receiver,
            identity,
            wire.landings,
            on_events,
            role.lease,
            done_socket=wire.done_socket,
        )
