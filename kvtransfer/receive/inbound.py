"""One transfer into a decode worker, from its first message until its row has its pages.

PARKED --- ASSIGN ---.                       .--------- spoilt, drained: RESERVE comes again
   ^                 v                       v                  |
 RESERVE          QUEUED <--- RESERVE --- EXPECTED              |
                     |                       ^                  |
                     |  pages                | ASSIGN           |
                     '-----> GRANTED --------|------------------'
                                |
   OVER <--- from any           | DONE, all verified
                                v
                             LANDED --- commit ---> OVER

    PARKED   -> QUEUED, OVER
    EXPECTED -> QUEUED, OVER
    QUEUED   -> GRANTED, OVER
    GRANTED  -> EXPECTED, LANDED, OVER
    LANDED   -> OVER
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.events import Abandoned, Dead, FirstToken, Landed, ReceiverEvent
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.page_authority import PageAuthority
from twolane.kvtransfer.receive.grant import InGrant
from twolane.kvtransfer.receive.grant_book import GrantBook
from twolane.kvtransfer.receive.peers import InPeers
from twolane.kvtransfer.transport import Checked
from twolane.lifecycle import Lifecycle
from twolane.tombstones import Tombstones
from twolane.v1 import transfer_pb2


@dataclass(frozen=True, slots=True)
class Ending:
    """How a transfer ended: the generation that was `committed`, or 0 and the `reason`."""

    reason: str
    committed: int = 0


Endings = Tombstones[Key, Ending]  # late ASSIGN, RESERVE and DONE are answered from here


class InState(Enum):
    PARKED = auto()
    EXPECTED = auto()
    QUEUED = auto()
    GRANTED = auto()
    LANDED = auto()
    OVER = auto()


IN_MOVES = {
    InState.PARKED: frozenset({InState.QUEUED, InState.OVER}),
    InState.EXPECTED: frozenset({InState.QUEUED, InState.OVER}),
    InState.QUEUED: frozenset({InState.GRANTED, InState.OVER}),
    InState.GRANTED: frozenset({InState.EXPECTED, InState.LANDED, InState.OVER}),
    InState.LANDED: frozenset({InState.OVER}),
    InState.OVER: frozenset[InState](),
}


@dataclass(frozen=True, slots=True)
class InHub:
    """What all transfers of one receiver share."""

    config: ReceiverConfig
    page_tokens: int
    page_bytes: int
    pages: PageAuthority
    book: GrantBook
    peers: InPeers
    tombstones: Endings
    events: list[ReceiverEvent]
    dropped: Counter[str]

    def refuse(self, key: Key, reason: str) -> None:
        refused = transfer_pb2.Refused(key=key.proto(), reason=reason)
        self.peers.say(key.sender_epoch, refused=refused)


class Inbound:
    """The state machine of one key. Each `on_` method takes one message, late or repeated ones
    included."""

    def __init__(self, key: Key, start: InState, hub: InHub, now: float) -> None:
        self.key = key
        self.n_tokens = 0  # of the ASSIGN; 0 while parked
        self._hashes: Sequence[bytes] | None = None  # of the row's full pages, by its ASSIGN
        self.reserve: transfer_pb2.Reserve | None = None
        self.grant: InGrant | None = None  # while GRANTED
        self.pages: list[int] = []  # once LANDED: of the whole row, one reference each is ours
        self.heard_at = now  # of the sender, about this key
        self.n_passed_pages = 0  # granted to others behind it, while it was the head of the queue
        self._hub = hub
        self._life = Lifecycle(start, IN_MOVES)
        self._born_at = now
        self._done: transfer_pb2.Done | None = None
        self._landed_at = now  # when something landed last, or began to
        self._judged_at: float | None = None  # the sender is suspected; what is under way may land
        self._regrants = 0
        self._n_late = 0

    @property
    def state(self) -> InState:
        return self._life.state

    @property
    def is_expected(self) -> bool:
        """Its ASSIGN came: the role waits for an event."""
        return self.n_tokens > 0

    @property
    def is_waiting(self) -> bool:
        """It asked for pages and has none yet."""
        return self.state in (InState.PARKED, InState.QUEUED)

    @property
    def is_undecided(self) -> bool:
        """All Chunks came, the last perhaps in DONE; its bytes may still be on their way."""
        grant = self.grant
        return grant is not None and self._done is not None and grant.is_announced

    @property
    def n_pages(self) -> int:
        """Pages of the whole row. Only after its ASSIGN came."""
        return math.ceil(self.n_tokens / self._hub.page_tokens)

    def may_be_passed_by(self, other: Inbound) -> bool:
        """Whether `other` may be granted first: all that pass it together take no more pages than
        it asks for itself."""
        return self.n_passed_pages + other.n_pages <= self.n_pages  # guard: bounded pass

    def held_pages(self) -> list[int]:
        """Each page once for each reference that this transfer holds."""
        return self.pages if self.grant is None else self.grant.skipped + self.grant.pages

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        is_granted, is_landed = self.state is InState.GRANTED, self.state is InState.LANDED
        assert is_granted == (self.grant is not None), f"{self.key}: {self.state} and its grant"
        assert is_landed == bool(self.pages), f"{self.key}: {self.state}, {len(self.pages)} pages"

    # -- from the role ----------------------------------------------------------------------

    def assign(self, n_tokens: int, prefix_hashes: Sequence[bytes] | None, now: float) -> None:
        """The ASSIGN of an expected or parked transfer."""
        self.n_tokens = n_tokens
        self._hashes = prefix_hashes
        if self.state is InState.PARKED:
            self._enqueue(now)

    def commit(self, now: float) -> None:
        """The row takes its pages. For a while, a repeated DONE is answered by COMMIT again."""
        assert self.state is InState.LANDED
        assert self._done is not None
        assert self.reserve is not None
        self._life.advance(InState.OVER)
        for page, chain_hash in zip(self.pages, self.reserve.prefix_hashes, strict=False):
            self._hub.pages.publish(page, chain_hash)
        ticket = self._done.ticket
        self._hub.tombstones.bury(self.key, Ending("", ticket.generation), now)
        self._hub.peers.say(self.key.sender_epoch, commit=transfer_pb2.Commit(ticket=ticket))

    def end(self, reason: str, now: float) -> None:
        """Ends without success and without an event. Only pages in quarantine remain."""
        self._life.advance(InState.OVER)
        if self.grant is not None:
            self._revoke(self.grant, reason, now)
        self._hub.pages.release(self.pages)
        self._hub.tombstones.bury(self.key, Ending(reason), now)
        self._hub.refuse(self.key, reason)

    def die(self, reason: str, now: float) -> None:
        """Ends without success, with an event for the role."""
        if self.is_expected:
            self._hub.events.append(Dead(self.key, reason))
        self.end(reason, now)

    def suspect(self, now: float) -> None:
        """The sender is suspected: announced pages may still land for a moment, nothing else."""
        if self._judged_at is None:
            self._judged_at = now

    # -- from the sender --------------------------------------------------------------------

    def on_reserve(self, reserve: transfer_pb2.Reserve, now: float) -> None:
        if self.reserve is not None:
            self._hub.dropped[reasons.DUPLICATE] += 1
            if self.grant is not None:
                self._hub.peers.say(self.key.sender_epoch, reserved=self.grant.reserved())
            return
        self.reserve = reserve
        if self.is_expected:
            self._enqueue(now)

    def on_renewed(self, now: float) -> None:
        """The sender knows this transfer. Reserved is repeated until the first Chunk shows that the
        sender has it.
        """
        self.heard_at = now
        if self.grant is not None and not self.grant.is_begun:
            self._hub.peers.say(self.key.sender_epoch, reserved=self.grant.reserved())

    def on_chunk(self, chunk: transfer_pb2.Chunk, now: float) -> None:
        grant = self._current_grant(chunk.ticket)
        if grant is None:
            return
        if grant.knows(chunk):
            self._hub.dropped[reasons.DUPLICATE] += 1
        elif not grant.announce(chunk, require_checksums=self._needs_sums(grant)):
            self._hub.dropped[reasons.MALFORMED] += 1
        else:
            first = chunk.first_page - len(grant.skipped)
            grant.landing.check(grant.generation, first, chunk.n_pages)

    def on_done(self, done: transfer_pb2.Done, now: float) -> None:
        if self.state is InState.LANDED:
            self._hub.dropped[reasons.DUPLICATE] += 1
            return
        grant = self._current_grant(done.ticket)
        if grant is None:  # the sender does not know yet that this ticket is void
            revoke = transfer_pb2.Revoke(ticket=done.ticket, reason=reasons.GENERATION)
            self._hub.peers.say(self.key.sender_epoch, revoke=revoke)
        elif done.n_bytes != len(grant.pages) * self._hub.page_bytes:  # guard: whole
            self._hub.dropped[reasons.MALFORMED] += 1
        elif self._done is None:
            if done.HasField("last_chunk") and done.last_chunk.ticket != done.ticket:
                self._hub.dropped[reasons.MALFORMED] += 1
                return
            self._done = done
            self._landed_at = now
            if done.HasField("last_chunk"):
                self.on_chunk(done.last_chunk, now)
            self._try_land()

    def on_abandon(self, abandon: transfer_pb2.Abandon, now: float) -> None:
        if self.is_expected:
            self._hub.events.append(Abandoned(self.key, abandon.reason))
        self.end(reasons.ABANDONED, now)

    def on_drained(self, drained: transfer_pb2.Drained, now: float) -> None:
        """Drained without a Revoke: the sender lost bytes and begins again. The ticket is void."""
        if self.grant is not None and drained.ticket.generation == self.grant.generation:
            self._spoil(reasons.INCOMPLETE, now)

    # -- from pages, transport and time -----------------------------------------------------

    def try_grant(self, now: float) -> bool:
        """Take pages for a queued transfer. False if there is no room."""
        assert self.reserve is not None
        landing = self._hub.peers.landing_of(self.key.sender_epoch)
        assert landing is not None
        grant = self._hub.book.try_open(self.key, self.n_pages, self.reserve.prefix_hashes, landing)
        if grant is None:
            return False
        self.grant = grant
        self._landed_at = now
        self._life.advance(InState.GRANTED)
        self._hub.peers.say(self.key.sender_epoch, reserved=grant.reserved())
        return True

    def on_checked(self, checked: Checked, now: float) -> None:
        assert self.grant is not None
        self._landed_at = now
        if not self.grant.verify(checked):
            self._spoil(reasons.CORRUPT, now)
        else:
            self._try_land()

    def tick(self, now: float) -> None:
        lease_s = self._hub.config.lease.lease_s
        is_silent = now - self.heard_at > lease_s
        if self.state is InState.GRANTED:
            judged_at, landing_s = self._judged_at, self._hub.config.landing_timeout_s
            if judged_at is not None:
                if now - judged_at > self._hub.config.judge_wait_s:
                    self.die(reasons.JUDGED, now)
            elif is_silent:
                self.die(reasons.LEASE, now)
            elif self._done is not None and now - self._landed_at > landing_s:
                self._on_late(now)
        elif self.state is InState.PARKED and now - self._born_at > lease_s:
            self.die(reasons.UNASSIGNED, now)
        elif is_silent and (self.state is InState.QUEUED or self._waits_again):
            self.die(reasons.LEASE, now)

    # -- inside -----------------------------------------------------------------------------

    @property
    def _waits_again(self) -> bool:
        """It had a grant; the sender should reserve again."""
        return self.state is InState.EXPECTED and self._regrants > 0

    def _needs_sums(self, grant: InGrant) -> bool:
        """Chunks need no checksums where the landing compares none (mappings of one host)."""
        return self._hub.config.require_checksums and bool(grant.landing.digests)

    def _enqueue(self, now: float) -> None:
        assert self.reserve is not None
        if self.reserve.n_tokens != self.n_tokens or not self._is_of_row(self.reserve):
            self.die(reasons.MISMATCH, now)
        else:
            self._life.advance(InState.QUEUED)

    def _is_of_row(self, reserve: transfer_pb2.Reserve) -> bool:
        """Its hashes are the row's: else other pages would be skipped, or indexed as these."""
        told = list(reserve.prefix_hashes)
        return self._hashes is None or told == list(self._hashes[: len(told)])  # guard: hashes

    def _current_grant(self, ticket: transfer_pb2.Ticket) -> InGrant | None:
        if self.grant is None:
            self._hub.dropped[reasons.STATE] += 1
            return None
        if ticket.generation != self.grant.generation:  # guard: generation
            self._hub.dropped[reasons.GENERATION] += 1
            return None
        return self.grant

    def _try_land(self) -> None:
        grant = self.grant
        if grant is None or self._done is None or not grant.is_verified:
            return
        self.pages = self._hub.book.keep(grant)
        self.grant = None
        self._life.advance(InState.LANDED)
        done = self._done
        logprob = done.first_logprob if done.HasField("first_logprob") else None
        top = tuple(zip(done.top_ids, done.top_logprobs, strict=False))
        first = FirstToken(done.first_token, logprob, top)
        self._hub.events.append(Landed(self.key, tuple(self.pages), len(grant.skipped), first))

    def _spoil(self, reason: str, now: float) -> None:
        """Withdraw a grant that is lost; the sender reserves again, `max_regrants` times."""
        assert self.grant is not None
        if self._judged_at is not None or self._regrants >= self._hub.config.max_regrants:
            self.die(reason, now)
            return
        self._revoke(self.grant, reason, now)
        self._life.advance(InState.EXPECTED)
        self.grant = self._done = self.reserve = None
        self._regrants += 1

    def _on_late(self, now: float) -> None:
        """Its bytes do not come, though the sender has said all. By this way they may not come for
        long, so it gets `max_late` more tries."""
        self._n_late += 1
        if self._n_late > self._hub.config.max_late:
            self.die(reasons.INCOMPLETE, now)
        else:
            self._spoil(reasons.INCOMPLETE, now)

    def _revoke(self, grant: InGrant, reason: str, now: float) -> None:
        self._hub.book.revoke(grant, reason, now)
        revoke = transfer_pb2.Revoke(ticket=grant.ticket, reason=reason)
        self._hub.peers.say(self.key.sender_epoch, revoke=revoke)
        if self._hub.peers.is_gone(self.key.sender_epoch):
            self._hub.book.on_sender_stopped(grant)
