"""The open links of a sender or receiver: delivers its messages and events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from twolane.rpc.link import Link, LinkBrokenError
from twolane.v1 import worker_pb2

OutT = TypeVar("OutT")
InT = TypeVar("InT")
EventT = TypeVar("EventT")


class Core(Protocol[OutT, EventT]):
    """`Sender` or `Receiver`."""

    def take_outbox(self) -> list[tuple[int, OutT]]: ...

    def take_events(self) -> list[EventT]: ...


@dataclass(frozen=True, slots=True)
class _Open(Generic[OutT, InT]):
    link: Link[OutT, InT]
    how: worker_pb2.PeerTransport


class PeerLinks(Generic[OutT, InT, EventT]):
    """At most one link for each peer, by epoch: a later one replaces an earlier one."""

    def __init__(self, core: Core[OutT, EventT], on_events: Callable[[list[EventT]], None]) -> None:
        self._core = core
        self._on_events = on_events
        self._of: dict[int, _Open[OutT, InT]] = {}
        self._is_flushing = False

    @property
    def transports(self) -> list[worker_pb2.PeerTransport]:
        """How pages travel to or from each peer."""
        return [peer.how for peer in self._of.values()]

    def add(
        self,
        epoch: int,
        link: Link[OutT, InT],
        worker_id: str,
        transport: str,
        instead_of: str = "",
    ) -> None:
        how = worker_pb2.PeerTransport(
            worker_id=worker_id, transport=transport, instead_of=instead_of
        )
        former, self._of[epoch] = self._of.get(epoch), _Open(link, how)
        if former is not None:
            former.link.close()  # its messages are no longer answered; its reader ends

    def has(self, epoch: int) -> bool:
        return epoch in self._of

    def close(self, epoch: int) -> None:
        """Its reader notices and removes it."""
        self._of[epoch].link.close()

    def remove(self, epoch: int, link: Link[OutT, InT]) -> bool:
        """False if it was not there, or another link has replaced it."""
        peer = self._of.get(epoch)
        if peer is None or peer.link is not link:
            return False
        del self._of[epoch]
        return True

    def flush(self) -> None:
        """Send the core's messages and deliver its events until there are none left."""
        if self._is_flushing:
            return  # called from `on_events`: the loop below goes on
        self._is_flushing = True
        try:
            while True:
                outbox, events = self._core.take_outbox(), self._core.take_events()
                if not outbox and not events:
                    return
                for epoch, message in outbox:
                    if epoch in self._of:
                        with suppress(LinkBrokenError):  # its reader notices and detaches the peer
                            self._of[epoch].link.send(message)
                if events:
                    self._on_events(events)
        finally:
            self._is_flushing = False
