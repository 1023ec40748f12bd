"""Receiver's end of the nixl transport: the senders' agents write into our pool; this end polls and
computes checksums.

    revoke --> ask the sender --- drained ----------------------------> Stopped
                    |
                    '--- no answer in time, or its channel broke --- close its agent --> Stopped

The writer may be on another host, where we cannot see its process end, and over sockets its last
bytes may be written here after that end. So its Drained counts; if it gives none, we close its way
in: each sender has an agent of its own, and only that agent knows the memory. Closing it is proof,
whatever became of the sender. `sender_writes` is False because this landing's `Stopped` needs no
answer of anybody else.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from twolane.kvtransfer import reasons
from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import DeviceError, Region
from twolane.kvtransfer.page_lane import PLAIN_RECEIVER
from twolane.kvtransfer.transport import Checked, LandingEvent, Stopped
from twolane.kvtransfer.transports.common.frames import FrameError
from twolane.kvtransfer.transports.common.listener import Listener, ListenerConfig
from twolane.kvtransfer.transports.common.page_summer import PageSummer
from twolane.kvtransfer.transports.common.pending_sums import PendingSums
from twolane.kvtransfer.transports.common.thread import TransportThread, pause
from twolane.kvtransfer.transports.nixl.agent import NixlAgent, NixlError
from twolane.kvtransfer.transports.nixl.channel import regions_to_proto
from twolane.kvtransfer.transports.nixl.sender_connection import SenderConnection
from twolane.v1 import nixl_pb2

DRAIN_S = 2.0  # a revoked sender has so long to answer


@dataclass(frozen=True, slots=True)
class _Grant:
    sender_epoch: int
    pages: PageIds


class NixlLanding(TransportThread[LandingEvent]):
    """See `Landing`. Owns the listener and the summer. Raises `NixlError` if NIXL does not work.
    Close it before the pool."""

    sender_writes = False
    lane = PLAIN_RECEIVER

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        receiver_epoch: int,
        regions: Sequence[Region],
        page_bytes: int,
        summer: PageSummer,
        *,
        checksums: bool,
        limits: ListenerConfig | None = None,
        drain_s: float = DRAIN_S,
    ) -> None:
        super().__init__("landing")
        self.address = address
        self.digests: tuple[str, ...] = summer.digests if checksums else ()
        self._epoch = receiver_epoch
        self._regions = tuple(regions)
        self._page_bytes = page_bytes
        self._summer = summer
        self._drain_s = drain_s
        self._names = itertools.count(1)
        self._spare: NixlAgent | None = self._new_agent()  # created now: the first is slow
        self._dropped: Counter[str] = Counter()
        self._grants: dict[int, _Grant] = {}  # by generation
        self._last_generation = 0
        self._digest_of: dict[int, str] = {}  # by sender epoch
        self._stopping: set[int] = set()
        self._sums = PendingSums(self._mailbox)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._mailbox.bell, selectors.EVENT_READ)
        self._listener = Listener(
            listener, self._selector, SenderConnection, self._dropped, limits or ListenerConfig()
        )
        self._start()

    @property
    def dropped(self) -> Counter[str]:
        """How many connections and messages were refused, by reason; a snapshot."""
        return Counter(self._dropped)

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._order(self._grant, sender_epoch, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._order(self._revoke, generation)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        waits = [self._listener.tick(time.monotonic()), self._expire()]
        wait_s = min((wait for wait in waits if wait is not None), default=None)
        busy = [connection for connection in self._listener.connections if connection.is_busy]
        is_looking = bool(busy or self._sums)
        for key, _ in self._selector.select(0 if is_looking else wait_s):
            if isinstance(key.data, SenderConnection):
                if key.data in self._listener.connections:
                    self._attend(key.data)
            elif key.data is self._listener:
                self._listener.accept(time.monotonic())
            else:
                self._mailbox.hear()
        for connection in busy:
            try:
                connection.drive()
            except NixlError:
                self._drop(connection)
        if is_looking and not self._sums.look():
            pause()

    def _grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._grants[generation] = _Grant(sender_epoch, pages)
        self._last_generation = max(self._last_generation, generation)

    def _check(self, generation: int, first: int, n: int) -> None:
        grant = self._grants.get(generation)
        digest = self._digest_of.get(grant.sender_epoch) if grant is not None else None
        if grant is None or digest is None:  # no sender can have written to them
            return
        with suppress(DeviceError):  # it stays unanswered: the receiver's timeout ends it
            sums, fence = self._summer.sum(grant.pages[first : first + n], digest)
            if fence is not None:
                self._sums.add(generation, first, sums, fence)
            else:
                answer = sums if digest else None
                self._mailbox.tell(Checked(generation, first, n, answer))

    # -- revoking ---------------------------------------------------------------------------

    def _revoke(self, generation: int) -> None:
        grant = self._grants.pop(generation, None)
        self._stopping.add(generation)
        if grant is not None:
            for connection in self._connections_of(grant.sender_epoch):
                self._ask(connection, generation)
        self._tell_stopped()

    def _tell_stopped(self) -> None:
        owed = {
            generation
            for connection in self._listener.connections
            for generation in connection.owed
        }
        for generation in self._stopping - owed:  # guard: drain wait
            self._stopping.remove(generation)
            self._mailbox.tell(Stopped(generation))

    def _expire(self) -> float | None:
        """Drop senders that did not answer in time. Returns the seconds until the next timeout."""
        now = time.monotonic()
        for connection in list(self._listener.connections):
            if connection.answers_until is not None and connection.answers_until <= now:
                self._dropped[reasons.STUCK] += 1
                self._drop(connection)
        untils = [
            g.answers_until for g in self._listener.connections if g.answers_until is not None
        ]
        return max(0.0, min(untils) - now) if untils else None

    # -- senders ----------------------------------------------------------------------------

    def _connections_of(self, epoch: int) -> list[SenderConnection]:
        return [each for each in self._listener.connections if each.epoch == epoch]

    def _attend(self, connection: SenderConnection) -> None:
        try:
            for message in connection.channel.heard():
                self._on_message(connection, message)
        except FrameError:
            self._dropped[reasons.MALFORMED] += 1
            self._drop(connection)
        except OSError:
            self._drop(connection)

    def _on_message(self, connection: SenderConnection, message: nixl_pb2.NixlRequest) -> None:
        kind = message.WhichOneof("message")
        if (kind == "hello") == connection.is_known:
            raise FrameError(f"{kind}: a second hello, or none")
        if kind == "hello":
            self._welcome(connection, message.hello)
        elif kind == "busy":
            connection.is_busy = message.busy.is_busy
        elif kind == "drained":
            connection.owed.pop(message.drained.generation, None)
            self._tell_stopped()
        else:
            raise FrameError("nothing")

    def _welcome(self, connection: SenderConnection, hello: nixl_pb2.NixlHello) -> None:
        """The spare agent was created on another thread. UCX aborts a process that gets pages of a
        card on a thread where no card is current."""
        if hello.receiver_epoch != self._epoch or not hello.sender_epoch:
            raise FrameError(f"meant for epoch {hello.receiver_epoch:x}")
        if hello.page_bytes != self._page_bytes:
            raise FrameError(f"pages of {hello.page_bytes} bytes; here {self._page_bytes}")
        if hello.checksum not in (self.digests or ("",)):
            raise FrameError(f"digest {hello.checksum!r}; here {self.digests}")
        self._summer.enter()  # guard: device entered
        agent, self._spare = self._spare or self._new_agent(), None
        connection.meet(hello.sender_epoch, agent)
        self._digest_of[hello.sender_epoch] = hello.checksum
        held = [g for g, grant in self._grants.items() if grant.sender_epoch == connection.epoch]
        connection.channel.say(
            nixl_pb2.NixlResponse(
                welcome=nixl_pb2.NixlWelcome(
                    agent=agent.metadata,
                    regions=regions_to_proto(self._regions),
                    last_generation=self._last_generation,
                    open_generations=held,
                )
            )
        )

    def _ask(self, connection: SenderConnection, generation: int) -> None:
        connection.owed[generation] = time.monotonic() + self._drain_s
        revoke = nixl_pb2.NixlRevoke(generation=generation)
        with suppress(OSError):  # its channel broke: the next read finds that out
            connection.channel.say(nixl_pb2.NixlResponse(revoke=revoke))

    def _drop(self, connection: SenderConnection) -> None:
        self._listener.drop(connection)  # closes its agent: it cannot write any more
        if not self._connections_of(connection.epoch) and not self._has_grants(connection.epoch):
            self._digest_of.pop(connection.epoch, None)
        self._tell_stopped()

    def _has_grants(self, epoch: int) -> bool:
        return any(grant.sender_epoch == epoch for grant in self._grants.values())

    def _new_agent(self) -> NixlAgent:
        self._summer.enter()
        return NixlAgent(f"d-{self._epoch:x}-{next(self._names)}", self._regions)

    def _leave(self) -> None:
        self._listener.close()
        if self._spare is not None:
            self._spare.close()
        self._summer.close()
        self._selector.close()
