"""All transfers out of one prefill worker. Synchronous: time comes in, messages come out.

    open    -> RESERVE         until Reserved, Busy or Refused answers, or Renewed names the key
    offer   -> posts -> Chunk  as the transport completes them, within each peer's window of bytes
    finish  -> DONE            with the last Chunk; again with all, until Commit, Revoke or Refused
    abandon -> Abandon         until Refused answers it, one lease at most

The life of one transfer is drawn in `twolane.kvtransfer.send.outbound`. Every key that was opened
ends in exactly one `Released`, whatever the peer does: the lease ends what gets no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.device import Mark
from twolane.kvtransfer.events import FirstToken, SenderEvent
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.link.done_socket import TrySendDone
from twolane.kvtransfer.page_authority import PageAuthority
from twolane.kvtransfer.send.abandons import UnansweredAbandons
from twolane.kvtransfer.send.outbound import Outbound, OutHub, OutRow, OutState
from twolane.kvtransfer.send.posts import OutPeer, PostBook
from twolane.kvtransfer.transport import Outlet
from twolane.v1 import transfer_pb2


class Sender:
    """See the module's docstring. After any call, `take_outbox` and `take_events` have the news."""

    def __init__(
        self,
        epoch: int,
        pages: PageAuthority,
        *,
        page_tokens: int,
        page_bytes: int,
        hash_tokens: int = 0,
        config: SenderConfig,
    ) -> None:
        """Prefix hashes come one every `hash_tokens`; 0: one a page."""
        self.epoch = epoch
        self.dropped: Counter[str] = Counter()  # messages, by reason
        self._even = Paging(page_tokens, page_tokens, page_bytes)
        self._hash_tokens = hash_tokens or page_tokens
        self._config = config
        self._outs: dict[Key, Outbound] = {}
        self._posts = PostBook[Outbound](config)
        self._abandons = UnansweredAbandons(config.lease)
        self._barred: dict[int, str] = {}  # receivers that pages cannot go to, and why
        self._outbox: list[tuple[int, transfer_pb2.ConnectRequest]] = []
        self._events: list[SenderEvent] = []
        self._hub = OutHub(
            config=config,
            pages=pages,
            posts=self._posts,
            abandons=self._abandons,
            say=self._say,
            events=self._events,
            dropped=self.dropped,
        )

    # -- calls of the prefill role ----------------------------------------------------------

    def open(
        self, key: Key, *, n_tokens: int, prefix_hashes: Sequence[bytes], priority: int, now: float
    ) -> None:
        """Start to request pages of `key.receiver_epoch` (RESERVE). A repeat changes nothing.

        A key is opened once in a worker's life: after `Released` it must not come back.
        """
        n_pages = self._even.n_pages(n_tokens)
        row = OutRow(n_tokens, n_pages, tuple(prefix_hashes), self._hash_tokens, priority)
        out = self._open(key, row, now)
        why = self._barred.get(key.receiver_epoch)
        if why is not None and out.is_open:
            out.fail(why, now)
            self._forget_over([out])

    def offer(
        self,
        key: Key,
        first_page: int,
        pages: Sequence[int],
        now: float,
        after: Mark | None = None,
    ) -> None:
        """Finished pages [first_page, ...) of the row, in order, each once, used by the caller now.

        `after`: the device event after which they are finished; none is read before it.
        Pinned from now until `Released`. Ignored if the transfer is over or ending.
        """
        out = self._outs.get(key)
        if out is not None and out.is_open:
            assert first_page == len(out.pages), f"page {first_page} after {len(out.pages)}"
            out.offer(pages, now, after)
            self._forget_over([out])

    def computed(self, key: Key, n_pages: int, now: float) -> None:
        """The row's first n_pages are computed, whatever event they were offered with. Before this
        call, a send that waits for them does not count as stuck."""
        out = self._outs.get(key)
        if out is not None and out.is_open:
            out.computed(n_pages, now)

    def finish(self, key: Key, first: FirstToken, now: float) -> None:
        """All pages were offered and the first token is known: send DONE once all is sent."""
        out = self._outs.get(key)
        if out is not None and out.is_open:
            out.finish(first, now)

    def abandon(self, key: Key, reason: str, now: float) -> None:
        """Give up (cancel; FINISH). `Released` follows when no send is under way. Idempotent."""
        out = self._outs.get(key)
        if out is not None and out.is_open:
            out.close(reason or reasons.CANCELLED, now)
            self._forget_over([out])

    def retarget(self, key: Key, new_key: Key, now: float) -> bool:
        """Send the same pages under `new_key` (another receiver) instead. False if they are no
        longer held, or pages cannot go there.

        Further `offer` and `finish` calls use `new_key`. `Released(key)` comes for the old key too.
        """
        old = self._outs.get(key)
        if old is None or not old.is_open or new_key.receiver_epoch in self._barred:
            return False
        new = self._open(new_key, old.row, now)
        new.take_over(old, now)
        if old.first is not None:
            new.finish(old.first, now)
        old.close(reasons.RETARGETED, now)
        self._forget_over([old])
        return True

    # -- figures ----------------------------------------------------------------------------

    @property
    def held_pages(self) -> int:
        """How many pins transfers hold (a page that two of them hold counts twice)."""
        return sum(len(out.pages) for out in self._outs.values())

    @property
    def is_full(self) -> bool:
        """The holding cap is reached: do not start a prefill."""
        cap = self._config.holding_cap_pages
        return cap > 0 and self.held_pages >= cap

    def is_granted(self, key: Key) -> bool:
        """The receiver granted pages: it is being sent, or has arrived."""
        return key in self._outs and self._outs[key].is_granted

    def pinned_pages(self) -> Counter[int]:
        """How many pins of each page this sender holds."""
        return Counter(page for out in self._outs.values() for page in out.pages)

    def check_integrity(self) -> None:
        """Check that transfers, sends under way and windows agree. Raises AssertionError."""
        for key, out in self._outs.items():
            assert key == out.key and out.state is not OutState.OVER, f"{key} is kept, though over"  # noqa: PT018
            has_grant = out.grant is not None
            assert has_grant or not out.is_granted, f"{key} is granted nothing"
            assert has_grant or not out.in_flight, f"{key} sends without a grant"
        self._posts.check_integrity(self._outs.values())

    def keys(self, epoch: int | None = None) -> list[Key]:
        """Transfers that are not over (to one receiver)."""
        return [key for key in self._outs if epoch in (None, key.receiver_epoch)]

    def is_idle(self, epoch: int) -> bool:
        """No transfer and no unanswered message is left: its link and outlet may be closed."""
        return not self.keys(epoch) and not self._abandons.has(epoch)

    def has_messages(self, epoch: int) -> bool:
        """Some transfer may send a message to that receiver or wait for one. Those that only wait
        for cancelled sends to complete do not."""
        waits = any(self._outs[key].has_messages for key in self.keys(epoch))
        return waits or self._abandons.has(epoch)

    def take_outbox(self) -> list[tuple[int, transfer_pb2.ConnectRequest]]:
        """Messages by receiver epoch, in order. Those that cannot be sent may be dropped."""
        outbox = self._outbox.copy()
        self._outbox.clear()
        return outbox

    def take_events(self) -> list[SenderEvent]:
        events = self._events.copy()
        self._events.clear()
        return events

    # -- the peer ---------------------------------------------------------------------------

    def attach_peer(
        self,
        epoch: int,
        outlet: Outlet,
        now: float,
        paging: Paging | None = None,
        *,
        takes_last_chunk: bool = False,
        try_send_done: TrySendDone | None = None,
    ) -> None:
        """Hellos were exchanged with that receiver. `paging`: how its pages are cut, if not as
        ours. `takes_last_chunk`: as in its hello. `try_send_done`: a quicker way for the first DONE
        of each row, if there is one; the link repeats what may have got lost on it.

        The outlet converts pages where that is needed. The caller closes it, and passes the same
        one each time until `forget_peer`.
        """
        peer = self._posts.peers.setdefault(epoch, OutPeer(outlet, paging or self._even, now))
        assert peer.outlet is outlet, "posts may be under way on the other outlet"
        self._barred.pop(epoch, None)
        peer.takes_last_chunk = takes_last_chunk
        peer.try_send_done = try_send_done
        peer.attached = True
        peer.renew_at = now
        self._abandons.hurry(epoch, now)
        for key in self.keys(epoch):
            self._outs[key].repeat(now)
            self._outs[key].progress(now)

    def detach_peer(self, epoch: int, now: float) -> None:
        """The link broke. Transfers wait for `attach_peer` until their lease runs out."""
        if epoch in self._posts.peers:
            self._posts.peers[epoch].attached = False

    def fail_peer(self, epoch: int, reason: str, now: float) -> None:
        """Pages cannot go to that receiver (it refused, or no transport could be opened): open
        transfers fail now, new ones fail at once, until `attach_peer` or `forget_peer`."""
        self._barred[epoch] = reason
        outs = [self._outs[key] for key in self.keys(epoch)]
        for out in outs:
            if out.is_open:
                out.fail(reason, now)
        self._forget_over(outs)

    def forget_peer(self, epoch: int) -> None:
        """Forget a receiver without transfers. The caller closes its outlet."""
        assert not self.keys(epoch), "transfers to that receiver are under way"
        self._posts.peers.pop(epoch, None)
        self._barred.pop(epoch, None)

    def poll(self, now: float) -> None:
        """Read the completed posts. Call when an outlet wakes the loop."""
        moved: dict[Outbound, None] = {}  # and no others can have anything new to do
        for post, posted in self._posts.poll(now):
            post.out.on_posted(post, posted, now)
            moved[post.out] = None
        self._forget_over(list(moved))
        for epoch in dict.fromkeys(out.key.receiver_epoch for out in moved):
            for out in self._posts.take_waiting(epoch):
                out.progress(now)
        for out in moved:
            out.progress(now)

    def tick(self, now: float) -> None:
        """Heartbeats, repeats, leases, stuck sends. Call every `lease.retry_first_s` or so."""
        outs = list(self._outs.values())
        for out in outs:
            out.tick(now)
        for out in self._posts.stuck(now):
            out.on_stuck(now)
        self._forget_over(outs)
        for epoch, peer in self._posts.peers.items():
            if now >= peer.renew_at:
                peer.renew_at = now + self._config.lease.heartbeat_s
                keys = [k.proto() for k in self.keys(epoch) if self._outs[k].is_hopeful]
                if keys:
                    self._say(epoch, renew=transfer_pb2.Renew(keys=keys))
        for epoch, abandon in self._abandons.due(now):
            self._say(epoch, abandon=abandon)

    def on_message(self, epoch: int, message: transfer_pb2.ConnectResponse, now: float) -> None:
        """Handle a message of that receiver; messages may be late, repeated or out of order."""
        kind = message.WhichOneof("message") or ""
        if kind == "renewed":
            for key in message.renewed.keys:
                out = self._outs.get(Key.of(key)) if self._is_current(epoch, key) else None
                if out is not None:
                    out.heard_at = now
                    out.on_renewed(now)
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            self.dropped[reasons.MALFORMED] += 1
            return
        body = getattr(message, kind)
        key = body.ticket.key if kind in ("reserved", "commit", "revoke") else body.key
        if not self._is_current(epoch, key):
            return
        out = self._outs.get(Key.of(key))
        if out is None:
            self._on_stray(epoch, kind, body)
            return
        out.heard_at = now
        handler(out, body, now)
        self._forget_over([out])

    # -- inside -----------------------------------------------------------------------------

    def _open(self, key: Key, row: OutRow, now: float) -> Outbound:
        assert key.sender_epoch == self.epoch
        if key not in self._outs:
            self._outs[key] = Outbound(key, row, self._hub, now)
        return self._outs[key]

    def _is_current(self, epoch: int, key: transfer_pb2.TransferKey) -> bool:
        if key.sender_epoch != self.epoch or key.receiver_epoch != epoch:  # guard: epoch
            self.dropped[reasons.EPOCH] += 1
            return False
        return True

    def _on_stray(self, epoch: int, kind: str, body: Any) -> None:
        """A message about a key that is over: none of its sends is under way, none will start."""
        if kind in ("reserved", "revoke"):
            self._say(epoch, drained=transfer_pb2.Drained(ticket=body.ticket))
        elif kind == "refused" and body.reason != reasons.UNKNOWN:  # that answers a Renew before it
            self._abandons.answered(Key.of(body.key))

    def _forget_over(self, outs: Sequence[Outbound]) -> None:
        for out in outs:
            if not out.is_open and out.key in self._outs and not out.in_flight:
                del self._outs[out.key]

    def _say(self, epoch: int, **body: Any) -> None:
        if self._posts.is_attached(epoch):
            self._outbox.append((epoch, transfer_pb2.ConnectRequest(**body)))


_HANDLERS: dict[str, Callable[[Outbound, Any, float], None]] = {
    "reserved": Outbound.on_reserved,
    "busy": Outbound.on_busy,
    "refused": Outbound.on_refused,
    "commit": Outbound.on_commit,
    "revoke": Outbound.on_revoke,
}
