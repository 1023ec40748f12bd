"""All transfers into one decode worker. Synchronous: time comes in, messages come out.

    expect + RESERVE -> queue by priority -> grant as pages free up -> Reserved
    Chunk, bytes     -> verified page by page, under the current generation only
    DONE, all landed -> Landed -> try_commit -> COMMIT, also for each repeated DONE
    doubt            -> Revoke until proof; pages in quarantine; Refused to late messages

The life of one transfer is drawn in `twolane.kvtransfer.receive.inbound`, that of a grant in
`twolane.kvtransfer.receive.grant`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.events import Dead, ReceiverEvent, Verdict
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.page_authority import PageAuthority
from twolane.kvtransfer.receive.grant_book import GrantBook, GrantPolicy, OnRevoked
from twolane.kvtransfer.receive.inbound import Ending, Endings, Inbound, InHub, InState
from twolane.kvtransfer.receive.peers import InPeer, InPeers
from twolane.kvtransfer.transport import Checked, Landing
from twolane.v1 import transfer_pb2


class Receiver:
    """See the module's docstring. After any call, `take_outbox` and `take_events` have the news.

    `may_grant(key, n)` decides whether n pages may be taken now: it reserves pages that running
    rows will grow into. `on_revoked(key)`: a grant was withdrawn, and the pages reserved for that
    row's growth are free until it is granted again.
    """

    def __init__(
        self,
        epoch: int,
        pages: PageAuthority,
        *,
        page_tokens: int,
        page_bytes: int,
        may_grant: GrantPolicy,
        on_revoked: OnRevoked = lambda key: None,
        config: ReceiverConfig,
    ) -> None:
        self.epoch = epoch
        self.dropped: Counter[str] = Counter()  # messages, by reason
        self._config = config
        self._ins: dict[Key, Inbound] = {}  # oldest first
        self._peers = InPeers()
        self._book = GrantBook(pages, may_grant, on_revoked, config)
        self._tombstones = Endings(2 * config.lease.lease_s)
        self._events: list[ReceiverEvent] = []
        self._hub = InHub(
            config=config,
            page_tokens=page_tokens,
            page_bytes=page_bytes,
            pages=pages,
            book=self._book,
            peers=self._peers,
            tombstones=self._tombstones,
            events=self._events,
            dropped=self.dropped,
        )

    # -- calls of the decode role -----------------------------------------------------------

    def expect(
        self, key: Key, *, n_tokens: int, now: float, prefix_hashes: Sequence[bytes] | None = None
    ) -> bool:
        """Its ASSIGN came: n_tokens is the length of the row (len(token_ids)). `prefix_hashes` are
        those of its full pages; a RESERVE with others is refused. None: they are not compared.

        False: the key was cancelled or abandoned before; drop the ASSIGN. A repeat changes nothing.
        """
        assert key.receiver_epoch == self.epoch
        assert n_tokens >= 1
        if key in self._tombstones:  # guard: tombstone
            return False
        inbound = self._ins.get(key)
        if inbound is None:
            inbound = self._ins[key] = Inbound(key, InState.EXPECTED, self._hub, now)
        if not inbound.is_expected:
            inbound.assign(n_tokens, prefix_hashes, now)
            self._forget_over()
            self._grant_waiting(now)
        return True

    def cancel(self, key: Key, now: float) -> None:
        """Stop and leave a tombstone, whether or not the key is known. No event follows.

        Not for a row that `try_commit` handed over.
        """
        inbound = self._ins.get(key)
        if inbound is not None:
            inbound.end(reasons.CANCELLED, now)
            self._forget_over()
        elif key not in self._tombstones:
            self._tombstones.bury(key, Ending(reasons.CANCELLED), now)

    def try_commit(self, key: Key, now: float) -> list[int] | None:
        """Take a `Landed` row: the caller owns its pages (one reference each) from now on.

        Its full prompt pages enter the prefix index. None: it was given up after `Landed`; the
        next event (`Abandoned`), or the caller's own `cancel`, ends the row.
        """
        inbound = self._ins.get(key)
        if inbound is None:  # guard: given up
            return None
        del self._ins[key]
        inbound.commit(now)
        return inbound.pages

    def judge(
        self, sender_epoch: int, now: float, concerns: Callable[[Key], bool] = lambda key: True
    ) -> list[Verdict]:
        """A router suspects the sender. Returns verdicts on decided keys that concern it.

        Undecided ones (all was announced, bytes are landing) follow within `judge_wait_s` as
        `Landed` or `Dead`. Keys judged dead give no further event.
        """
        verdicts = [
            Verdict(key, True)
            for key, ending in self._tombstones.items()
            if key.sender_epoch == sender_epoch and ending.committed and concerns(key)
        ]
        for inbound in self._of_sender(sender_epoch):
            if not concerns(inbound.key):
                continue
            if inbound.state is InState.LANDED:
                verdicts.append(Verdict(inbound.key, True))
            elif inbound.is_undecided:
                inbound.suspect(now)
            else:
                if inbound.is_expected:
                    verdicts.append(Verdict(inbound.key, False))
                inbound.end(reasons.JUDGED, now)
        self._forget_over()
        return verdicts

    def peer_gone(self, sender_epoch: int, now: float) -> None:
        """Proof that no process of that epoch runs any more: frees the pages it may have written.

        What it had not finished is `Dead`. May be called twice, and for unknown epochs.
        """
        peer = self._peers.of.get(sender_epoch)
        if peer is not None:
            peer.is_gone = True
            peer.attached = False
        self._judge_aloud(sender_epoch, now)
        for grant in self._book.revoked():
            if grant.key.sender_epoch == sender_epoch:
                self._book.on_sender_stopped(grant)
        self._grant_waiting(now)

    # -- figures ----------------------------------------------------------------------------

    @property
    def n_queued(self) -> int:
        """How many reservations wait for pages."""
        return sum(1 for inbound in self._ins.values() if inbound.is_waiting)

    @property
    def quarantined_pages(self) -> int:
        return self._book.quarantined_pages

    def fence_wanted(self, now: float) -> list[int]:
        """Epochs to fence now: their end would free quarantined pages, and the quarantine is full
        or too old."""
        return self._book.fence_wanted(now)

    def held_pages(self) -> Counter[int]:
        """How many references to each page this receiver holds; quarantined pages have none."""
        held: Counter[int] = Counter()
        for inbound in self._ins.values():
            held.update(inbound.held_pages())
        return held

    def check_integrity(self) -> None:
        """Check that transfers, grants and tombstones agree. Raises AssertionError."""
        granted: set[int] = set()
        for key, inbound in self._ins.items():
            assert key == inbound.key and inbound.state is not InState.OVER, f"{key} is over"  # noqa: PT018
            assert key not in self._tombstones, f"{key} is here, and buried"
            inbound.check_integrity()
            if inbound.grant is not None:
                granted.add(inbound.grant.generation)
        assert granted == self._book.open_generations(), "grants that no transfer has"

    def keys(self) -> list[Key]:
        """Transfers that are not over."""
        return list(self._ins)

    def take_outbox(self) -> list[tuple[int, transfer_pb2.ConnectResponse]]:
        """Messages by sender epoch, in order. Those that cannot be sent may be dropped."""
        outbox, self._peers.outbox = self._peers.outbox, []
        return outbox

    def take_events(self) -> list[ReceiverEvent]:
        events = self._events.copy()
        self._events.clear()
        return events

    # -- the peer ---------------------------------------------------------------------------

    def attach_peer(self, epoch: int, landing: Landing, now: float) -> None:
        """Hellos were exchanged with that sender; its bytes come by this landing."""
        self._peers.of[epoch] = InPeer(landing)
        self._book.hurry(epoch, now)
        self._grant_waiting(now)

    def detach_peer(self, epoch: int, now: float) -> None:
        """The link broke: suspicion. The sender is judged unless it is back within `reattach_s`."""
        peer = self._peers.of.get(epoch)
        if peer is not None and peer.attached:
            peer.attached = False
            peer.judge_at = now + self._config.reattach_s

    def poll(self, now: float) -> None:
        """Read what the landings report. Call when one of them wakes us."""
        # landings of earlier transports too: their `Stopped` frees pages that were granted there
        landings = [*self._peers.landings(), *self._book.landings()]
        for landing in {id(landing): landing for landing in landings}.values():
            for event in landing.poll():
                if isinstance(event, Checked):
                    grant = self._book.find(event.generation)
                    if grant is not None and grant.is_open:
                        self._ins[grant.key].on_checked(event, now)
                else:
                    self._book.on_stopped(event.generation)
        self._forget_over()
        self._grant_waiting(now)

    def tick(self, now: float) -> None:
        """Leases, repeats, grants. Call every `lease.retry_first_s`, and when pages were freed."""
        for inbound in self._ins.values():
            inbound.tick(now)
        self._forget_over()
        for epoch, peer in list(self._peers.of.items()):
            if now >= peer.judge_at:
                peer.judge_at = math.inf
                self._judge_aloud(epoch, now)
            if not (peer.attached or math.isfinite(peer.judge_at) or self._of_sender(epoch)):
                del self._peers.of[epoch]
        for grant in self._book.revokes_due(now):
            revoke = transfer_pb2.Revoke(ticket=grant.ticket, reason=grant.reason)
            self._peers.say(grant.key.sender_epoch, revoke=revoke)
        self._tombstones.tick(now)
        self._grant_waiting(now)

    def on_message(self, epoch: int, message: transfer_pb2.ConnectRequest, now: float) -> None:
        """Handle a message of that sender; messages may be late, repeated or out of order."""
        kind = message.WhichOneof("message") or ""
        if kind == "renew":
            keys = [k for k in message.renew.keys if self._is_current(epoch, k)]
            self._on_renew(epoch, [Key.of(key) for key in keys], now)
            return
        if kind not in _HANDLERS and kind != "reserve":
            self.dropped[reasons.MALFORMED] += 1
            return
        body = getattr(message, kind)
        proto = body.ticket.key if kind in ("chunk", "done", "drained") else body.key
        if not self._is_current(epoch, proto):
            return
        key = Key.of(proto)
        inbound = self._ins.get(key)
        if inbound is not None:
            inbound.heard_at = now
        if kind == "reserve":
            self._on_reserve(key, inbound, body, now)
        elif inbound is not None:
            _HANDLERS[kind](inbound, body, now)
        else:
            self._on_stray(key, kind, now)
        if inbound is not None and inbound.state is InState.OVER:
            self._ins.pop(key, None)
        self._on_proof(key, kind, body, now)
        if kind not in ("chunk", "done"):  # these neither request nor free pages
            self._grant_waiting(now)

    # -- inside -----------------------------------------------------------------------------

    def _is_current(self, epoch: int, key: transfer_pb2.TransferKey) -> bool:
        if key.sender_epoch != epoch or key.receiver_epoch != self.epoch:  # guard: epoch
            self.dropped[reasons.EPOCH] += 1
            return False
        return True

    def _on_renew(self, epoch: int, keys: list[Key], now: float) -> None:
        known: list[transfer_pb2.TransferKey] = []
        for key in keys:
            inbound = self._ins.get(key)
            if inbound is not None and inbound.reserve is not None:
                inbound.on_renewed(now)
                known.append(key.proto())
            elif not self._is_buried(key):
                self._hub.refuse(key, reasons.UNKNOWN)
        if known:
            self._peers.say(epoch, renewed=transfer_pb2.Renewed(keys=known))

    def _on_reserve(
        self, key: Key, inbound: Inbound | None, reserve: transfer_pb2.Reserve, now: float
    ) -> None:
        """Idempotent. Parked if it came before its ASSIGN; answered Busy if the queue is full."""
        if self._is_buried(key):  # guard: tombstone
            return
        if inbound is not None and inbound.reserve is not None:
            inbound.on_reserve(reserve, now)
            return
        n_pages = math.ceil(reserve.n_tokens / self._hub.page_tokens)
        if reserve.n_tokens < 1 or len(reserve.prefix_hashes) > n_pages:
            self.dropped[reasons.MALFORMED] += 1
        elif n_pages > self._hub.pages.n_pages:
            self._hub.refuse(key, reasons.TOO_LARGE)
        elif self.n_queued >= self._config.queue_limit or self._book.is_at_cap:
            self._peers.say(key.sender_epoch, busy=transfer_pb2.Busy(key=key.proto()))
        else:
            if inbound is None:
                inbound = self._ins[key] = Inbound(key, InState.PARKED, self._hub, now)
            inbound.on_reserve(reserve, now)

    def _on_stray(self, key: Key, kind: str, now: float) -> None:
        """A message about a key that is over or unknown."""
        if kind == "abandon":
            if key not in self._tombstones:  # guard: tombstone
                self._tombstones.bury(key, Ending(reasons.ABANDONED), now)
        elif not self._is_buried(key) and kind == "done":
            self._hub.refuse(key, reasons.UNKNOWN)

    def _on_proof(self, key: Key, kind: str, body: Any, now: float) -> None:
        """The sender has no write under way and will start none."""
        if kind == "drained":
            grant = self._book.find(body.ticket.generation)
            if grant is None or grant.key != key:  # guard: whose grant
                self.dropped[reasons.GENERATION] += 1
            else:
                self._book.on_sender_stopped(grant)
        elif kind == "abandon":
            for grant in self._book.revoked():
                if grant.key == key:
                    self._book.on_sender_stopped(grant)
            self._hub.refuse(key, reasons.ABANDONED)  # so that the sender stops repeating it

    def _is_buried(self, key: Key) -> bool:
        """Answer that the key is over."""
        ending = self._tombstones.find(key)
        if ending is None:
            return False
        if ending.committed:
            commit = transfer_pb2.Commit(ticket=key.ticket(ending.committed))
            self._peers.say(key.sender_epoch, commit=commit)
        else:
            self._hub.refuse(key, ending.reason)
        return True

    def _grant_waiting(self, now: float) -> None:
        """By priority, then age. Some that find room may pass a head that does not, until they took
        as many pages as it asks for: small ones need not wait for it, and it does not starve."""
        queued = [i for i in self._ins.values() if i.state is InState.QUEUED and i.reserve]
        queued.sort(key=lambda i: -(i.reserve.priority if i.reserve else 0))
        head: Inbound | None = None
        looks = self._config.pass_looks
        for inbound in queued:
            if self._peers.landing_of(inbound.key.sender_epoch) is None:
                continue
            if self._book.is_at_cap:  # guard: quarantine cap
                return
            if head is None:
                if not inbound.try_grant(now):
                    head = inbound
            elif head.may_be_passed_by(inbound):
                if looks == 0:
                    return
                looks -= 1
                if inbound.try_grant(now):
                    head.n_passed_pages += inbound.n_pages

    def _judge_aloud(self, epoch: int, now: float) -> None:
        for verdict in self.judge(epoch, now):
            if not verdict.landed:
                self._events.append(Dead(verdict.key, reasons.JUDGED))

    def _of_sender(self, epoch: int) -> list[Inbound]:
        return [i for i in self._ins.values() if i.key.sender_epoch == epoch]

    def _forget_over(self) -> None:
        for key in [k for k, i in self._ins.items() if i.state is InState.OVER]:
            del self._ins[key]


_HANDLERS: dict[str, Callable[[Inbound, Any, float], None]] = {
    "chunk": Inbound.on_chunk,
    "done": Inbound.on_done,
    "abandon": Inbound.on_abandon,
    "drained": Inbound.on_drained,
}
