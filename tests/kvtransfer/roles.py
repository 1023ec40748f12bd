"""What router, prefill role and decode role do in a schedule, as far as pages are concerned."""

from __future__ import annotations

from typing import Any

from tests.kvtransfer.chaos import LEASE, PAGE_BYTES, PAGE_TOKENS, Bytes, Request, pattern
from tests.kvtransfer.nodes import DecodeNode, PrefillNode
from tests.kvtransfer.stage import Stage
from twolane.kvtransfer import reasons
from twolane.kvtransfer.events import Committed, Dead, Failed, FirstToken, Landed, Released
from twolane.kvtransfer.key import Key


class Roles(Stage):
    """Decisions are drawn, late or missing; pages are asserted when taken and when given back."""

    # -- the router -------------------------------------------------------------------------

    def _new_request(self, i: int) -> None:
        group, n_tokens = self.random.randrange(2), self.random.randint(1, 5 * PAGE_TOKENS)
        shared = min(self.random.randrange(3), n_tokens // PAGE_TOKENS)
        request = Request(f"r{i}", n_tokens, group, shared)
        self.requests.append(request)
        self._assign(request, self._pick(self.prefills), self._pick(self.decodes))
        if i < self.chaos.retargets:
            self.later(self.random.uniform(0, 0.4), self._retarget, request)
        if self.chaos.retargets <= i < self.chaos.retargets + self.chaos.cancels:
            self.later(self.random.uniform(0, 0.4), self._cancel, request)

    def _assign(self, request: Request, prefill: PrefillNode, decode: DecodeNode) -> None:
        request.attempt += 1
        request.origin = request.attempt
        n_pages = -(-request.n_tokens // PAGE_TOKENS)
        words = [
            (request.group, i) if i < request.shared else (request.name, request.attempt, i)
            for i in range(n_pages)
        ]
        request.contents = [pattern(*w) for w in words]
        n_full = request.n_tokens // PAGE_TOKENS
        request.hashes = [repr(w).encode() for w in words[:n_full]]
        key = Key(request.name, request.attempt, prefill.epoch, decode.epoch)
        self._expect(decode, request, key)
        self._later_at(prefill, self._prefill, prefill, request, key)

    def _expect(self, decode: DecodeNode, request: Request, key: Key) -> None:
        def expect() -> None:
            if decode.epoch == key.receiver_epoch and decode.receiver.expect(
                key, n_tokens=request.n_tokens, now=self.now
            ):
                decode.open_keys.add(key)
            self._flush_decode(decode)

        self._later_at(decode, expect)

    def _cancel(self, request: Request) -> None:
        self.outcome["cancel"] += 1
        for prefill in self.prefills:
            held = prefill.sender.keys()
            for key in held:
                if key.submission_id == request.name:
                    self._later_at(prefill, self._abandon, prefill, key, reasons.CANCELLED)
        if self.random.random() < 0.7:
            self._cancel_at_decode(request)
        else:  # P alone hears it, and D from P; should Abandon get lost, D from the router at last
            self.later(3 * LEASE.lease_s, self._cancel_at_decode, request)

    def _cancel_at_decode(self, request: Request) -> None:
        for decode in self.decodes:
            for key in sorted({*decode.receiver.keys(), *decode.open_keys}):
                if key.submission_id == request.name:
                    self._later_at(decode, self._drop, decode, key)

    def _retarget(self, request: Request) -> None:
        for prefill in self.prefills:
            held = prefill.sender.keys()
            keys = [key for key in held if key.submission_id == request.name]
            for key in keys[:1]:
                other = self._pick(self.decodes)
                if not prefill.is_alive or prefill.is_stopped:
                    continue
                request.attempt += 1
                new = Key(request.name, request.attempt, prefill.epoch, other.epoch)
                if prefill.sender.retarget(key, new, self.now):
                    self.outcome["retarget"] += 1
                    prefill.opened.add(new)
                    if key in prefill.rows:
                        prefill.rows[new] = prefill.rows.pop(key)
                    for decode in self.decodes:
                        self._later_at(decode, self._drop, decode, key)
                    self._expect(other, request, new)
                self._flush_prefill(prefill)

    # -- prefill workers --------------------------------------------------------------------

    def _prefill(self, prefill: PrefillNode, request: Request, key: Key) -> None:
        if prefill.epoch != key.sender_epoch:
            return
        pages = prefill.pages.try_take(len(request.contents))
        if pages is None:
            self.outcome["prefill full"] += 1  # never opened: the router takes it back
            for decode in self.decodes:
                self._later_at(decode, self._drop, decode, key)
            return
        prefill.rows[key] = pages
        prefill.opened.add(key)
        prefill.sender.open(
            key,
            n_tokens=request.n_tokens,
            prefix_hashes=request.hashes,
            priority=self.random.randrange(3),
            now=self.now,
        )
        self._flush_prefill(prefill)
        self._later_at(prefill, self._chunk, prefill, request, pages, 0)

    def _chunk(self, prefill: PrefillNode, request: Request, pages: list[Any], at: int) -> None:
        key = next((k for k, held in prefill.rows.items() if held is pages), None)
        if key is None:
            return
        stop = min(len(pages), at + self.random.randint(1, 3))
        for i in range(at, stop):
            prefill.pool[pages[i]] = request.contents[i]
        prefill.sender.offer(key, at, pages[at:stop], self.now)
        if stop < len(pages):
            self._later_at(prefill, self._chunk, prefill, request, pages, stop)
        else:
            index = self.requests.index(request)
            if self.chaos.n_requests - index <= self.chaos.finishes:
                self.outcome["finish"] += 1
                prefill.sender.abandon(key, reasons.FINISH, self.now)
                for decode in self.decodes:  # should Abandon get lost: the router ends it there
                    self.later(3 * LEASE.lease_s, self._later_at, decode, self._drop, decode, key)
            else:
                prefill.sender.finish(key, FirstToken(len(request.name)), self.now)
            del prefill.rows[key]
            prefill.pages.release(pages)
        self._flush_prefill(prefill)

    def _abandon(self, prefill: PrefillNode, key: Key, reason: str) -> None:
        if key in prefill.rows:
            prefill.pages.release(prefill.rows.pop(key))
        prefill.sender.abandon(key, reason, self.now)
        self._flush_prefill(prefill)

    def _flush_prefill(self, prefill: PrefillNode) -> None:
        for epoch, request in prefill.sender.take_outbox():
            if (prefill.epoch, epoch) in self.linked:
                self._carry(prefill, self._decode_of(epoch), request)
        for event in prefill.sender.take_events():
            self.outcome[type(event).__name__.lower()] += 1
            if isinstance(event, Failed):
                self.outcome[f"failed: {event.reason}"] += 1
            if isinstance(event, Released):
                assert event.key in prefill.opened
                assert event.key not in prefill.released, "released twice"
                prefill.released.add(event.key)
                if event.key in prefill.rows:
                    prefill.pages.release(prefill.rows.pop(event.key))
            if isinstance(event, Failed):
                for decode in self.decodes:  # the router hears of it
                    self._later_at(decode, self._drop, decode, event.key)
            if isinstance(event, Committed):
                assert event.n_bytes == event.n_pages * PAGE_BYTES

    # -- decode workers ---------------------------------------------------------------------

    def _flush_decode(self, decode: DecodeNode) -> None:
        for epoch, response in decode.receiver.take_outbox():
            if (epoch, decode.epoch) in self.linked:
                self._carry(decode, self._prefill_of(epoch), response)
        for event in decode.receiver.take_events():
            self.outcome[type(event).__name__.lower()] += 1
            assert event.key in decode.open_keys, f"{event} for a key that nobody waits for"
            if not decode.events:
                is_long = self.random.random() < 0.3
                step_s = self.random.uniform(0, 0.2 if is_long else 0.03)
                self._later_at(decode, self._end_step, decode, within_s=step_s)
            decode.events.append(event)

    def _end_step(self, decode: DecodeNode) -> None:
        """A role acts upon events between two steps only, however many came in one."""
        events, decode.events = decode.events, []
        for event in events:
            if event.key not in decode.open_keys:
                continue  # cancelled meanwhile
            if isinstance(event, Landed):
                self._join(decode, event)
                continue
            decode.open_keys.remove(event.key)
            self.outcome[f"dead: {event.reason}"] += isinstance(event, Dead)
            for prefill in self.prefills:
                self._later_at(prefill, self._abandon, prefill, event.key, reasons.CANCELLED)

    def _join(self, decode: DecodeNode, landed: Landed) -> None:
        pages = decode.receiver.try_commit(landed.key, self.now)
        if pages is None:
            self.outcome["given up when landed"] += 1
            return  # the event behind it ends the row
        request = next(r for r in self.requests if r.name == landed.key.submission_id)
        decode.open_keys.remove(landed.key)
        assert tuple(pages) == landed.pages
        assert landed.first == FirstToken(len(request.name))
        self.outcome["joined"] += 1
        self.outcome["skipped pages"] += landed.skip_pages
        self._hold(decode, landed.key, pages, request.contents)
        self._flush_decode(decode)

    def _own_row(self, decode: DecodeNode) -> None:
        if not decode.is_alive:
            return
        pages = decode.pages.try_take(self.random.randint(1, 4))
        if pages is not None:
            contents = [pattern("own", self._n_timers, i) for i in range(len(pages))]
            for page, content in zip(pages, contents, strict=True):
                decode.pool[page] = content
            self._hold(decode, Key("own", self._n_timers, 0, decode.epoch), pages, contents)

    def _hold(self, decode: DecodeNode, key: Key, pages: list[Any], contents: list[Bytes]) -> None:
        self._assert_content(decode, key, pages, contents)
        decode.rows[key] = (pages, contents)
        self.later(self.random.uniform(0.01, 0.5), self._let_go, decode, decode.epoch, key)

    def _let_go(self, decode: DecodeNode, epoch: int, key: Key) -> None:
        if decode.epoch != epoch or not decode.is_alive:
            return
        pages, contents = decode.rows.pop(key)
        self._assert_content(decode, key, pages, contents)
        decode.pages.release(pages)

    def _assert_content(
        self, decode: DecodeNode, key: Key, pages: list[Any], contents: list[Bytes]
    ) -> None:
        assert len(pages) == len(contents)
        for i, (page, content) in enumerate(zip(pages, contents, strict=True)):
            assert (decode.pool[page] == content).all(), f"page {i} of {key} is not its own"
        self.outcome["pages asserted"] += len(pages)

    def _drop(self, decode: DecodeNode, key: Key) -> None:
        if decode.epoch != key.receiver_epoch:
            return
        decode.open_keys.discard(key)
        decode.receiver.cancel(key, self.now)
        self._flush_decode(decode)
