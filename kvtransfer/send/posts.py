"""Sends under way: which transfer each belongs to, and a window of bytes a receiver.

A receiver that does not keep up fills its own window; the others' sends go on. One whose sends do
not move at all is stuck: its transfers are called back, and may go elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import Mark
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.link.done_socket import TrySendDone
from twolane.kvtransfer.send.grant import OutGrant
from twolane.kvtransfer.transport import Outlet, Posted
from twolane.v1 import transfer_pb2


class Transfer(Protocol):
    """What is sent: see `Outbound`, which has it all."""

    key: Key
    grant: OutGrant | None
    pages: list[int]
    marks: list[tuple[int, int, Mark]]
    n_computed: int
    in_flight: int  # kept by the PostBook

    @property
    def n_tokens(self) -> int: ...


OutT = TypeVar("OutT", bound=Transfer)


@dataclass(slots=True)
class OutPeer(Generic[OutT]):
    """One receiver: its outlet, and whether its link is up."""

    outlet: Outlet
    paging: Paging  # from our layout to its
    renew_at: float
    takes_last_chunk: bool = False  # see `ReceiverHello`
    attached: bool = True
    in_flight_bytes: int = 0
    moved_at: float = 0.0  # a send made progress, or began, or its pages were computed
    n_moved: int = 0  # the outlet's count at the last look
    try_send_done: TrySendDone | None = None  # tells it DONE sooner than its link does
    # Transfers that found the window full, the first one first.
    waiting: dict[OutT, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Post(Generic[OutT]):
    """One send. `index` is that of its chunk."""

    out: OutT
    index: int
    plan: CopyPlan
    n_bytes: int
    n_source: int  # source pages of the row that it needs

    @property
    def may_move(self) -> bool:
        """Its pages are computed, as far as we know."""
        return self.plan.after is None or self.n_source <= self.out.n_computed


class PostBook(Generic[OutT]):
    """Every send that its transport has not completed: their source pages are being read."""

    def __init__(self, config: SenderConfig) -> None:
        self.peers: dict[int, OutPeer[OutT]] = {}  # by receiver epoch
        self._config = config
        self._posts: dict[int, Post[OutT]] = {}
        self._last = 0

    def knows(self, epoch: int) -> bool:
        """Whether that receiver's link is or was up: it may know our transfers."""
        return epoch in self.peers

    def is_attached(self, epoch: int) -> bool:
        return epoch in self.peers and self.peers[epoch].attached

    def takes_last_chunk(self, epoch: int) -> bool:
        """Whether that receiver, whose link is or was up, reads a Chunk in DONE."""
        return self.peers[epoch].takes_last_chunk

    def try_send_done(self, epoch: int, done: transfer_pb2.Done) -> bool:
        """Tell that receiver, whose link is or was up, DONE sooner than the link would. False: it
        was not sent."""
        peer = self.peers[epoch]
        return peer.attached and peer.try_send_done is not None and peer.try_send_done(done)

    def paging_of(self, epoch: int) -> Paging:
        """The paging of a receiver whose link is or was up."""
        return self.peers[epoch].paging

    def post_what_fits(self, out: OutT, now: float) -> None:
        """Post offered pages of a granted transfer until the window is full."""
        peer = self.peers.get(out.key.receiver_epoch)
        grant = out.grant
        assert grant is not None
        while peer is not None and peer.attached:
            room = self._config.window_bytes - peer.in_flight_bytes
            page_bytes = peer.paging.target_bytes
            most_pages = min(room, self._config.post_bytes) // page_bytes
            if most_pages < 1 and peer.in_flight_bytes:
                peer.waiting[out] = None
                return
            plan = grant.next_plan(out.pages, max(1, most_pages), out.marks)
            if plan is None:
                return
            self._last += 1
            n_source = peer.paging.n_sources(grant.n_posted, out.n_tokens)
            post = Post(out, grant.n_chunks - 1, plan, plan.n_pages * page_bytes, n_source)
            self._posts[self._last] = post
            if not peer.in_flight_bytes:
                peer.moved_at = now
            out.in_flight += 1
            peer.in_flight_bytes += post.n_bytes
            peer.outlet.post(self._last, grant.generation, plan)

    def stuck(self, now: float) -> list[OutT]:
        """Transfers to receivers none of whose sends has moved for `stuck_after_s`. Sends whose
        pages are still being computed do not count."""
        for peer in self.peers.values():
            if peer.n_moved != (n_moved := peer.outlet.n_moved):
                peer.n_moved, peer.moved_at = n_moved, now
        late = now - self._config.stuck_after_s
        epochs = {
            epoch
            for epoch, peer in self.peers.items()
            if peer.in_flight_bytes and peer.moved_at <= late
        }
        movable = (post.out for post in self._posts.values() if post.may_move)
        outs = {id(out): out for out in movable} if epochs else {}
        return [out for out in outs.values() if out.key.receiver_epoch in epochs]

    def pages_came(self, out: OutT, now: float) -> None:
        """Pages were computed: sends that waited for them may move from now on."""
        peer = self.peers.get(out.key.receiver_epoch)
        if peer is not None and out.in_flight:
            peer.moved_at = now

    def poll(self, now: float) -> Iterator[tuple[Post[OutT], Posted]]:
        """Completed posts, each exactly once. They are no longer counted."""
        for peer in list(self.peers.values()):
            for posted in peer.outlet.poll():
                peer.moved_at = now
                post = self._posts.pop(posted.post)
                post.out.in_flight -= 1
                peer.in_flight_bytes -= post.n_bytes
                yield post, posted

    def take_waiting(self, epoch: int) -> list[OutT]:
        """Transfers that found that receiver's window full, in the order in which to try them
        again; those that find it full again are waiting again."""
        peer = self.peers[epoch]
        waiting = list(peer.waiting)
        peer.waiting.clear()
        return waiting

    def check_integrity(self, outs: Iterable[OutT]) -> None:
        """Check that each send belongs to a transfer that counts it. Raises AssertionError."""
        known = list(outs)
        sends = Counter(id(post.out) for post in self._posts.values())
        for out in known:
            n = sends.pop(id(out), 0)
            assert out.in_flight == n, f"{out.key} counts {out.in_flight} sends; there are {n}"
        assert not sends, "sends of transfers that are over"
        for epoch, peer in self.peers.items():
            n_bytes = sum(
                post.n_bytes
                for post in self._posts.values()
                if post.out.key.receiver_epoch == epoch
            )
            assert peer.in_flight_bytes == n_bytes, f"window of {epoch:x}: {n_bytes} bytes"

    def call_back(self, out: OutT) -> None:
        """Cancel the sends of this transfer: the outlet completes them soon, sent or not."""
        if out.in_flight and out.grant is not None:
            self.peers[out.key.receiver_epoch].outlet.cancel(out.grant.generation)
