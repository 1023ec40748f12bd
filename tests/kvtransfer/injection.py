"""Stale and corrupt pages on the way between two pools of devices: none may be believed.

    sender --- real outlet --- [pages go out as others] --- real landing --- receiver
      every row:  wrong, wrong, wrong, right       Revoked as corrupt each time, then Landed

What the device of the sender sums up is the right page; what goes out instead is of `KINDS`. One of
the two chunks of a grant has wrong pages: one of them, or all. A page counts as injected when the
receiver's device has summed it up, so that its verdict is known; pages that a revoked grant never
looked at do not count. Between two grants, all that was said of the last one is said again, and
where the receiver writes, its bytes come again, too.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.kvtransfer.injecting import LEFT_OUT, InjectingAgent, InjectingMemory
from tests.kvtransfer.pools import open_pool
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import ReceiverConfig, SenderConfig
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.events import FirstToken, Landed, Released
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.transport import Checked, LandingEvent, Posted
from twolane.kvtransfer.transports.nixl import outlet as nixl_outlet
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.v1 import transfer_pb2

P_EPOCH, D_EPOCH = 11, 12
PAGE_TOKENS = 16
TRIES = 3  # wrong ones of each row
WITHIN_S = 30.0
KINDS = (
    "bit",  # one bit of the page differs
    "past",  # what this page of the sender held in the row before
    "chunk",  # a page of the chunk before
    "row",  # the page at the same place of another row
    "swapped",  # two pages of the row, exchanged
    "zeros",
    "unwritten",  # announced, and not copied: what lay there, or in its slot
    "rot",  # a bit of the receiver's memory, after it landed and before it is summed up
)


@dataclass(slots=True)
class Tally:
    """Of pages."""

    injected: Counter[str] = field(default_factory=Counter)
    undetected: Counter[str] = field(default_factory=Counter)  # sums were equal
    decoded: int = 0  # rows were given to the decode role with these
    published: int = 0  # in the prefix index, of rows that were not whole
    false_alarms: int = 0  # right pages that were taken for wrong ones
    late: int = 0  # announced again under a ticket that was void
    late_bytes: int = 0  # sent again under one
    rows: int = 0

    @property
    def n_injected(self) -> int:
        return sum(self.injected.values())

    def check(self, kinds: tuple[str, ...] = KINDS) -> None:
        """Raises AssertionError."""
        assert not self.undetected, self
        assert self.decoded == self.published == self.false_alarms == 0, self
        assert set(self.injected) == set(kinds), self
        assert self.late, self


@dataclass(slots=True)
class Grant:
    """One ticket of a row. `wrong`: places in it whose pages are not the row's."""

    ticket: transfer_pb2.Ticket
    pages: list[int]
    kind: str
    wrong: set[int]
    said: list[transfer_pb2.ConnectRequest] = field(default_factory=list)
    sums: dict[int, int] = field(default_factory=dict)  # as they were announced


class Injection:
    """Two ends of `transport` in one process. Pages of one row fill the sender's pool."""

    def __init__(
        self, kind: str, transport: str, *, row_pages: int, page_bytes: int, seed: int = 1
    ) -> None:
        assert row_pages % 4 == 0
        self.n, self.half = row_pages, row_pages // 2
        self.tally = Tally()
        self._rng = np.random.default_rng(seed)
        n = row_pages
        self._past, self._bent, self._other, self._zero = n, 2 * n, 3 * n, 4 * n
        self._p = open_pool(kind, 4 * n + 1, page_bytes)
        self._d = open_pool(kind, 3 * n, page_bytes)
        self._memory = InjectingMemory(self._p.transfers)  # type: ignore[arg-type]
        self._content = self._random()
        config = TransportConfig(transports=(transport,), checksums=True)
        self._landing = open_landings(D_EPOCH, self._d.transfers, config)[transport]
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH,
            transport=transport,
            transport_address=self._landing.address,
            checksums=self._landing.digests,
        )
        self._outlet = OutletOpener(P_EPOCH, self._memory, config)(hello)
        self._ghost = OutletOpener(P_EPOCH, self._p.transfers, config)(hello)
        self._woken = threading.Event()
        for end in (self._outlet, self._ghost, self._landing):
            end.set_wake(self._woken.set)
        self._receiver_takes_bytes = not self._landing.sender_writes and transport != "nixl"
        self._p_pages, self._d_pages = PageAllocator(n), PageAllocator(3 * n)
        post = SenderConfig(post_bytes=self.half * page_bytes)
        sizes = {"page_tokens": PAGE_TOKENS, "page_bytes": page_bytes}
        self._sender = Sender(P_EPOCH, self._p_pages, config=post, **sizes)
        never_busy = ReceiverConfig(quarantine_cap_pages=3 * n)
        self._receiver = Receiver(
            D_EPOCH,
            self._d_pages,
            page_tokens=PAGE_TOKENS,
            page_bytes=page_bytes,
            may_grant=lambda key, n: True,
            config=never_busy,
        )
        self._look = self._landing.poll
        setattr(self._landing, "poll", self._watch)  # noqa: B010
        self._sender.attach_peer(D_EPOCH, self._outlet, self._now)
        self._receiver.attach_peer(P_EPOCH, self._landing, self._now)
        self._grant: Grant | None = None
        self._voided: list[Grant] = []
        self._order: Any = None  # the sender's pages of the row

    @property
    def kinds(self) -> tuple[str, ...]:
        """Where the receiver writes, a page is summed up right behind its copy."""
        return KINDS[:-1] if self._receiver_takes_bytes else KINDS

    def run(self, n_injected: int) -> Tally:
        """Rows, until so many pages were injected."""
        agent = partial(InjectingAgent, self._memory)  # an outlet opens its own at its first post
        with patch.object(nixl_outlet, "NixlAgent", agent):
            while self.tally.n_injected < n_injected:
                self._move_row()
        return self.tally

    def close(self) -> None:
        """Raises AssertionError where pages are left over."""
        for pages in (self._p_pages, self._d_pages):
            counts = pages.counts()
            assert counts.used == counts.pinned == counts.quarantined == 0, counts
            pages.check_integrity()
        self._outlet.close()
        self._ghost.close()
        self._landing.close()
        self._p.close()
        self._d.close()

    # -- a row ------------------------------------------------------------------------------

    def _move_row(self) -> None:
        n, tally = self.n, self.tally
        taken = self._p_pages.try_take(n)
        assert taken is not None
        order = self._order = self._rng.permutation(np.asarray(taken, dtype=np.int64))
        key = Key(str(tally.rows), 1, P_EPOCH, D_EPOCH)
        content = self._fill(order)
        hashes = [blake2b(b"%d %d" % (tally.rows, i), digest_size=16).digest() for i in range(n)]
        self._voided = []
        self._receiver.expect(key, n_tokens=n * PAGE_TOKENS, now=self._now)
        self._sender.open(
            key, n_tokens=n * PAGE_TOKENS, prefix_hashes=hashes, priority=0, now=self._now
        )
        self._sender.offer(key, 0, order.tolist(), self._now)
        self._sender.finish(key, FirstToken(7), self._now)
        self._p_pages.release(taken)
        end = self._now + WITHIN_S
        while not (landed := self._turn()):
            assert self._now < end, f"{key} did not land; {self._receiver.dropped}, {self._grant}"
            tally.published += self._d_pages.match_length(hashes)
        (row,) = landed
        assert row.skip_pages == 0
        assert len(self._voided) == TRIES, "wrong pages have landed"
        tally.decoded += int((self._d.pages[np.asarray(row.pages)] != content).any(axis=1).sum())
        pages = self._receiver.try_commit(key, self._now)
        assert pages is not None
        assert self._d_pages.match_length(hashes) == n
        self._d_pages.release([Page(page) for page in pages])
        while not any(isinstance(event, Released) for event in self._sender.take_events()):
            assert self._now < end, "the sender never let go of its pages"
            self._turn()
        tally.rows += 1

    def _fill(self, order: Any) -> Any:
        """A row's content into its pages, and what may go out instead beside them."""
        past, self._content = self._content, self._random()
        bent = self._content.copy()
        places = self._rng.integers(0, bent.shape[1], self.n)
        bent[np.arange(self.n), places] ^= (1 << self._rng.integers(0, 8, self.n)).astype(np.uint8)
        other = self._random()
        for first, pages in (
            (0, self._content),
            (self._past, past),
            (self._bent, bent),
            (self._other, other),
        ):
            self._p.pages[first + np.arange(self.n)] = pages
        self._p.pages[np.array([self._zero])] = np.zeros((1, bent.shape[1]), np.uint8)
        return self._content[order]

    # -- both sides, by hand ----------------------------------------------------------------

    def _turn(self) -> list[Landed]:
        """What is to be said is said, and what has arrived is looked at."""
        outs = [message for _, message in self._sender.take_outbox()]
        ins = [message for _, message in self._receiver.take_outbox()]
        for out in outs:
            self._tell_receiver(out)
        for told in ins:
            self._tell_sender(told)
        if not outs and not ins:
            self._woken.wait(0.02)
            self._woken.clear()
        self._sender.poll(self._now)
        self._receiver.poll(self._now)
        return [event for event in self._receiver.take_events() if isinstance(event, Landed)]

    def _tell_receiver(self, message: transfer_pb2.ConnectRequest) -> None:
        grant, kind = self._grant, message.WhichOneof("message")
        if grant is not None and kind in ("chunk", "done"):
            grant.said.append(message)
        if grant is not None and kind == "chunk":
            chunk = message.chunk
            assert len(chunk.checksums) == chunk.n_pages, "sums are on"
            places = range(chunk.first_page, chunk.first_page + chunk.n_pages)
            grant.sums |= dict(zip(places, chunk.checksums, strict=True))
            if grant.kind == "rot":
                self._rot(grant, sorted(grant.wrong & set(places)))
        self._receiver.on_message(P_EPOCH, message, self._now)

    def _tell_sender(self, message: transfer_pb2.ConnectResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "revoke" and message.revoke.reason != reasons.GENERATION:  # else a void DONE's
            assert message.revoke.reason == reasons.CORRUPT
            assert self._grant is not None
            self._voided.append(self._grant)
            self._grant = None
            self._memory.forget()
        elif kind == "reserved":
            if self._voided:
                self._say_again(self._voided[-1])
            self._arm(message.reserved)
        self._sender.on_message(D_EPOCH, message, self._now)

    def _watch(self) -> list[LandingEvent]:
        """What the receiver's device has summed up, page by page."""
        events, grant = self._look(), self._grant
        for event in events:
            if not isinstance(event, Checked) or grant is None:
                continue
            if event.generation != grant.ticket.generation:
                continue
            assert event.checksums is not None
            for place, found in enumerate(event.checksums.tolist(), event.first):
                is_wrong, is_equal = place in grant.wrong, grant.sums[place] == found
                self.tally.false_alarms += not is_wrong and not is_equal
                if is_wrong:
                    self.tally.injected[grant.kind] += 1
                if is_wrong and is_equal:
                    self.tally.undetected[grant.kind] += 1
        return list(events)

    # -- what goes wrong --------------------------------------------------------------------

    def _arm(self, reserved: transfer_pb2.Reserved) -> None:
        """The pages of this grant that go out as others."""
        tries, rng = len(self._voided), self._rng
        grant = Grant(reserved.ticket, list(reserved.pages), "", set())
        self._grant = grant
        if tries == TRIES:
            return
        if not tries and self.tally.rows % 3 == 0:  # later, the right page may lie there already
            grant.kind = "unwritten"
        else:
            others = [kind for kind in self.kinds if kind != "unwritten"]
            grant.kind = others[(self.tally.rows * TRIES + tries) % len(others)]
        first = self.half if grant.kind == "chunk" else int(rng.choice([0, self.half]))
        places = first + np.arange(self.half)
        if rng.random() < 0.25:  # one alone, or two to be exchanged
            places = places[2 * int(rng.integers(self.half // 2)) :][
                : 1 + (grant.kind == "swapped")
            ]
        grant.wrong = set(places.tolist())
        pages, order = self._order[places], self._order
        instead = {
            "bit": self._bent + pages,
            "past": self._past + pages,
            "row": self._other + pages,
            "chunk": order[places - self.half],
            "swapped": order[places ^ 1],
            "zeros": self._zero,
            "unwritten": LEFT_OUT,
            "rot": pages,
        }
        self._memory.goes_as[pages] = instead[grant.kind]

    def _rot(self, grant: Grant, places: list[int]) -> None:
        if places:
            ids = np.asarray(grant.pages)[places]
            held = self._d.pages[ids]
            held[:, int(self._rng.integers(held.shape[1]))] ^= 0x10
            self._d.pages[ids] = held

    def _say_again(self, grant: Grant) -> None:
        """A void ticket's chunks, its DONE, and its bytes where the receiver has to drop them."""
        before = self._receiver.dropped[reasons.GENERATION]
        for message in grant.said:
            self._receiver.on_message(P_EPOCH, message, self._now)
            self.tally.late += message.chunk.n_pages
        assert self._receiver.dropped[reasons.GENERATION] == before + len(grant.said)
        if not self._receiver_takes_bytes:
            return  # the sender writes under no void ticket: its own guard, tested with it
        dropped = self._n_dropped()
        src = self._past + np.arange(self.half)
        plan = CopyPlan(0, src, np.asarray(grant.pages[: self.half]))
        self._ghost.post(1, grant.ticket.generation, plan)
        end, posted = self._now + WITHIN_S, list[Posted]()
        while not posted or self._n_dropped() == dropped:
            assert self._now < end, "late bytes were not refused"
            posted += self._ghost.poll()
            time.sleep(0.001)
        assert posted[0].ok
        self.tally.late_bytes += self.half

    def _n_dropped(self) -> int:
        return int(self._landing.dropped[reasons.GENERATION])

    def _random(self) -> Any:
        return self._rng.integers(0, 256, (self.n, self._memory.page_bytes), np.uint8)

    @property
    def _now(self) -> float:
        return time.monotonic()
