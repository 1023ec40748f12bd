"""One transfer out of a prefill worker, from RESERVE until its pages are unpinned.

                  Reserved              all is sent           Commit
    RESERVING ---------------> GRANTED -------------> DONE ------------.
        ^                         |                     |              |
        |   no send under way     | Revoke, bytes lost, |              v    no send under way
        |                         v or stuck            |
        '------------------- DRAINING <-----------------'           CLOSING -----------------> OVER
                                                                       ^
       any before CLOSING -------------- abandon, Refused, lease ------'

    RESERVING -> GRANTED, CLOSING
    GRANTED   -> DONE, DRAINING, CLOSING
    DONE      -> DRAINING, CLOSING
    DRAINING  -> RESERVING, CLOSING
    CLOSING   -> OVER

While a send is under way (`in_flight`), the row's pages stay pinned, whatever else happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.device import Mark
from twolane.kvtransfer.events import Committed, Failed, FirstToken, Released, SenderEvent, Unplaced
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.page_authority import PageAuthority
from twolane.kvtransfer.retry import Retry
from twolane.kvtransfer.send.abandons import UnansweredAbandons
from twolane.kvtransfer.send.grant import OutGrant
from twolane.kvtransfer.send.posts import Post, PostBook
from twolane.kvtransfer.transport import Posted
from twolane.lifecycle import Lifecycle
from twolane.v1 import transfer_pb2


class OutState(Enum):
    RESERVING = auto()
    GRANTED = auto()
    DONE = auto()
    DRAINING = auto()
    CLOSING = auto()
    OVER = auto()


OUT_MOVES = {
    OutState.RESERVING: frozenset({OutState.GRANTED, OutState.CLOSING}),
    OutState.GRANTED: frozenset({OutState.DONE, OutState.DRAINING, OutState.CLOSING}),
    OutState.DONE: frozenset({OutState.DRAINING, OutState.CLOSING}),
    OutState.DRAINING: frozenset({OutState.RESERVING, OutState.CLOSING}),
    OutState.CLOSING: frozenset({OutState.OVER}),
    OutState.OVER: frozenset[OutState](),
}
_HOPEFUL = frozenset({OutState.RESERVING, OutState.GRANTED, OutState.DONE})
_IN_GRANT = frozenset({OutState.GRANTED, OutState.DONE})


class Say(Protocol):
    """Queue one ConnectRequest for a receiver, by the name of its field; dropped if its link is
    down."""

    def __call__(self, epoch: int, **body: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class OutHub:
    """What all transfers of one sender share."""

    config: SenderConfig
    pages: PageAuthority
    posts: PostBook[Outbound]
    abandons: UnansweredAbandons
    say: Say
    events: list[SenderEvent]
    dropped: Counter[str]


@dataclass(frozen=True, slots=True)
class OutRow:
    """The row to move: the same for every receiver that it is offered to."""

    n_tokens: int
    n_pages: int  # of the sender's size
    prefix_hashes: Sequence[bytes]  # one every `hash_tokens`
    hash_tokens: int
    priority: int

    def __post_init__(self) -> None:
        assert self.n_tokens >= 1
        assert len(self.prefix_hashes) * self.hash_tokens <= self.n_tokens

    def page_hashes(self, page_tokens: int) -> Sequence[bytes]:
        """Hashes at the end of every full page of that size; none if hashes do not fall there."""
        step, rest = divmod(page_tokens, self.hash_tokens)
        return () if rest else self.prefix_hashes[step - 1 :: step]


class Outbound:
    """The state machine of one key. Each `on_` method takes one message, late or repeated ones
    included."""

    def __init__(self, key: Key, row: OutRow, hub: OutHub, now: float) -> None:
        self.key = key
        self.row = row
        self.pages: list[int] = []  # offered so far, in row order, pinned by us
        self.marks: list[tuple[int, int, Mark]] = []  # pages [begin, end) are done at that event
        self.n_computed = 0  # offered pages that are computed, as far as we know
        self.first: FirstToken | None = None  # set by `finish`
        self.grant: OutGrant | None = None
        self.in_flight = 0  # posts that the transport has not completed; kept by the PostBook
        self.heard_at = now
        self._hub = hub
        self._life = Lifecycle(OutState.RESERVING, OUT_MOVES)
        self._retry = Retry(hub.config.lease, now)
        self._floor = 1  # lower generations are drained for good
        self._regrants = 0
        self._is_unplaced = False
        self._abandon_reason = ""  # to tell the receiver; empty: it knows that this is over
        self.repeat(now)

    @property
    def n_tokens(self) -> int:
        return self.row.n_tokens

    @property
    def state(self) -> OutState:
        return self._life.state

    @property
    def has_messages(self) -> bool:
        """It may send or get a message before the sends under way are completed."""
        return self.is_hopeful or (self.is_open and not self.in_flight)

    @property
    def is_hopeful(self) -> bool:
        """Its lease is running: it may still arrive under this grant."""
        return self.state in _HOPEFUL

    @property
    def is_granted(self) -> bool:
        """The receiver has granted pages."""
        return self.state in _IN_GRANT

    @property
    def is_open(self) -> bool:
        """Its pages may still be sent, to this receiver or another."""
        return self.state not in (OutState.CLOSING, OutState.OVER)

    # -- from the role ----------------------------------------------------------------------

    def offer(self, pages: Sequence[int], now: float, after: Mark | None = None) -> None:
        begin = len(self.pages)
        assert begin + len(pages) <= self.row.n_pages
        self._hub.pages.pin(pages)  # guard: pin
        self.pages.extend(pages)
        if after is not None:
            self.marks.append((begin, len(self.pages), after))
        self.progress(now)

    def computed(self, n_pages: int, now: float) -> None:
        """The row's first n_pages are computed: the device has passed their events."""
        if n_pages > self.n_computed:
            self.n_computed = n_pages
            self._hub.posts.pages_came(self, now)

    def take_over(self, other: Outbound, now: float) -> None:
        """Take over the pages that were offered to another receiver."""
        assert not self.pages
        self.marks = other.marks.copy()  # guard: mark
        self.n_computed = other.n_computed
        self.offer(other.pages, now)

    def finish(self, first: FirstToken, now: float) -> None:
        assert len(self.pages) == self.row.n_pages, "not all pages were offered"
        self.first = first
        self.progress(now)

    def close(self, reason: str, now: float) -> None:
        """End it as soon as no send is under way. `reason` is for the receiver."""
        self._abandon_reason = reason
        self._life.advance(OutState.CLOSING)
        self._hub.posts.call_back(self)
        self._settle(now)

    def fail(self, reason: str, now: float) -> None:
        self._hub.events.append(Failed(self.key, reason))
        self.close(reason, now)

    # -- from time and transport ------------------------------------------------------------

    def progress(self, now: float) -> None:
        """Post what fits into the window; send DONE when all is sent."""
        if self.state is not OutState.GRANTED:
            return
        self._hub.posts.post_what_fits(self, now)
        if self._is_all_sent:
            self._say_done(now)

    def on_posted(self, post: Post[Outbound], posted: Posted, now: float) -> None:
        if self.state is OutState.GRANTED and self.grant is not None:
            if posted.ok:
                chunk = self.grant.chunk(post.index, post.plan, posted.checksums.tolist())
                takes = self._hub.posts.takes_last_chunk(self.key.receiver_epoch)
                if takes and self._is_all_sent:
                    self._say_done(now, chunk)  # one message instead of two
                else:
                    self._say(chunk=chunk)
            else:
                self._drain(now)
                return
        self._settle(now)

    def on_stuck(self, now: float) -> None:
        """Its sends do not move: cancel them and reserve again, here or at a new receiver.

        Called back once: what then does not complete is waited for, as its pages are being read.
        """
        if self.state is OutState.GRANTED:
            self._tell_unplaced(reasons.STUCK)
            self._drain(now)

    def tick(self, now: float) -> None:
        if self.is_hopeful and now - self.heard_at > self._hub.config.lease.lease_s:
            self.fail(reasons.LEASE, now)
        elif self._retry.is_due(now):
            self._say_again()

    def repeat(self, now: float) -> None:
        """Send the message of the current state now, and repeat it from then on."""
        self._retry.start(now)
        self._say_again()

    # -- from the receiver ------------------------------------------------------------------

    def on_reserved(self, reserved: transfer_pb2.Reserved, now: float) -> None:
        generation = reserved.ticket.generation
        if generation < self._floor:  # guard: generation
            self._hub.dropped[reasons.GENERATION] += 1
            self._say(drained=transfer_pb2.Drained(ticket=reserved.ticket))
            return
        if self.state in _IN_GRANT and not self._is_current(reserved.ticket):
            self._drain(now)  # the old grant was revoked, and that message got lost
            return
        if self.state is not OutState.RESERVING:
            self._hub.dropped[reasons.DUPLICATE] += 1
            return
        paging = self._hub.posts.paging_of(self.key.receiver_epoch)
        n_pages = paging.n_pages(self.row.n_tokens)
        if reserved.skip_pages < 0 or reserved.skip_pages + len(reserved.pages) != n_pages:
            self._floor = generation + 1
            self._hub.dropped[reasons.MALFORMED] += 1
            self.fail(reasons.MALFORMED, now)
            return
        self.grant = OutGrant(reserved, paging, self.row.n_tokens)
        self._life.advance(OutState.GRANTED)
        self._is_unplaced = False
        self.progress(now)

    def on_busy(self, busy: transfer_pb2.Busy, now: float) -> None:
        if self.state is OutState.RESERVING:
            self._tell_unplaced(reasons.BUSY)

    def on_refused(self, refused: transfer_pb2.Refused, now: float) -> None:
        if refused.reason == reasons.UNKNOWN:
            if self.state is OutState.RESERVING:
                self._retry.start(now)  # it lost our RESERVE, or a Renew overtook that
            elif self.state in _IN_GRANT:
                self._drain(now)
        elif self.is_open:
            self.fail(refused.reason, now)

    def on_commit(self, commit: transfer_pb2.Commit, now: float) -> None:
        if self.state is not OutState.DONE:
            self._hub.dropped[reasons.STATE] += 1
        elif not self._is_current(commit.ticket):  # guard: generation
            self._hub.dropped[reasons.GENERATION] += 1
        else:
            assert self.grant is not None
            moved = Committed(self.key, self.grant.n_pages, self.grant.n_bytes, now)
            self._hub.events.append(moved)
            self.close("", now)

    def on_revoke(self, revoke: transfer_pb2.Revoke, now: float) -> None:
        if self._is_current(revoke.ticket):
            if self.state in _IN_GRANT:
                self._drain(now)
            return  # else draining or closing already: the answer comes with the last send
        self._floor = max(self._floor, revoke.ticket.generation + 1)
        self._say(drained=transfer_pb2.Drained(ticket=revoke.ticket))

    def on_renewed(self, now: float) -> None:
        if self.state is OutState.RESERVING:  # it is queued there: do not repeat it soon
            self._is_unplaced = False
            self._retry.put_off(now + 2 * self._hub.config.lease.heartbeat_s)

    # -- inside -----------------------------------------------------------------------------

    @property
    def _is_all_sent(self) -> bool:
        """All pages, under the present grant; and the first token is known."""
        return self.grant is not None and self.grant.is_sent and self.first is not None

    def _say_done(self, now: float, last_chunk: transfer_pb2.Chunk | None = None) -> None:
        assert self.grant is not None
        assert self.first is not None
        self._life.advance(OutState.DONE)
        self._retry.start(now)
        done = self.grant.done(self.first, last_chunk)
        if not self._hub.posts.try_send_done(self.key.receiver_epoch, done):
            self._say(done=done)

    def _tell_unplaced(self, reason: str) -> None:
        if not self._is_unplaced:
            self._is_unplaced = True
            self._hub.events.append(Unplaced(self.key, reason))

    def _is_current(self, ticket: transfer_pb2.Ticket) -> bool:
        return self.grant is not None and ticket.generation == self.grant.generation

    def _drain(self, now: float) -> None:
        """The grant is void. Cancel its sends; RESERVE again when they are completed."""
        self._life.advance(OutState.DRAINING)
        self._hub.posts.call_back(self)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Do what waits for the last send under way."""
        if self.in_flight:  # guard: pin, drain wait
            return
        if self.state is OutState.DRAINING:
            assert self.grant is not None
            self._say(drained=transfer_pb2.Drained(ticket=self.grant.ticket))
            self._floor = max(self._floor, self.grant.generation + 1)
            self.grant = None
            self._life.advance(OutState.RESERVING)
            self._regrants += 1
            if self._regrants > self._hub.config.max_regrants:
                self.fail(reasons.REGRANTS, now)
            else:
                self.repeat(now)
        elif self.state is OutState.CLOSING:
            self._life.advance(OutState.OVER)
            self._hub.pages.unpin(self.pages)
            self._hub.events.append(Released(self.key))
            if self._abandon_reason and self._hub.posts.knows(self.key.receiver_epoch):
                generation = 0 if self.grant is None else self.grant.generation
                self._hub.abandons.add(self.key, generation, self._abandon_reason, now)

    def _say_again(self) -> None:
        epoch = self.key.receiver_epoch
        if self.state is OutState.RESERVING and self._hub.posts.is_attached(epoch):
            paging = self._hub.posts.paging_of(epoch)
            reserve = transfer_pb2.Reserve(
                key=self.key.proto(),
                n_tokens=self.row.n_tokens,
                prefix_hashes=self.row.page_hashes(paging.target_tokens),
                priority=self.row.priority,
            )
            self._say(reserve=reserve)
        elif self.state is OutState.DONE:
            assert self.grant is not None
            assert self.first is not None
            for chunk in self.grant.chunks:
                self._say(chunk=chunk)
            self._say(done=self.grant.done(self.first))

    def _say(self, **body: Any) -> None:
        self._hub.say(self.key.receiver_epoch, **body)
