"""A small cluster for one schedule of faults: real allocators, senders, receivers and bytes.

Two prefill and two decode workers, a router's worth of decisions, a network that loses, repeats,
delays and damages, processes that stop and die. Everything is drawn from one seed; time is a heap.

Each page holds a pattern of what it belongs to. Rows on decode workers assert it when they take
their pages and again before they give them back; decode workers also take pages for rows of their
own, so that a write to a page that was freed too early meets somebody.
"""

from __future__ import annotations

from functools import partial

from tests.kvtransfer.chaos import LEASE, TICK_S
from tests.kvtransfer.nodes import DecodeNode, Node, PrefillNode
from tests.kvtransfer.roles import Roles
from twolane.kvtransfer.testing.memory import Faults


class World(Roles):
    """One schedule. `run` plays it to its end and asserts that nothing is left."""

    def run(self) -> None:
        for prefill in self.prefills:
            for decode in self.decodes:
                self._link(prefill, decode)
        for node in [*self.prefills, *self.decodes]:
            self.later(self.random.uniform(0, TICK_S), self._tick, node)
        for i in range(self.chaos.n_requests):
            self.later(self.random.uniform(0, 0.3), self._new_request, i)
        for _ in range(self.chaos.blows):
            self.later(self.random.uniform(0, 0.5), self._blow)
        for _ in range(3):
            self.later(self.random.uniform(0, 0.6), self._own_row, self._pick(self.decodes))
        self.advance(0.7)
        self._heal()
        deadline = self.now + 12 * LEASE.lease_s
        while self.now < deadline and not self._is_quiet():
            self.advance(self.now + TICK_S)
        self._assert_clean()

    def _heal(self) -> None:
        self.calm = True
        self.fabric.faults = Faults(delay_s=self.chaos.data.delay_s)
        for node in [*self.prefills, *self.decodes]:
            if node.is_stopped:
                self._go_on(node)
        self.cut.clear()
        for prefill in self.prefills:
            for decode in self.decodes:
                self._link(prefill, decode)
        for epoch in list(self.gone):
            self._fence(epoch)

    # -- blows ------------------------------------------------------------------------------

    def _blow(self) -> None:
        kind = self._pick(["kill prefill", "kill decode", "cut", "stop"])
        self.outcome[kind] += 1
        prefill, decode = self._pick(self.prefills), self._pick(self.decodes)
        if kind == "cut":
            self.cut.add((prefill.slot, decode.slot))
            self._unlink(prefill, decode)
            self.later(self.random.uniform(0, 0.4), self._mend, prefill, decode)
        elif kind == "stop":
            node: Node = self._pick([prefill, decode])
            if node.is_alive and not node.is_stopped:
                node.is_stopped = True
                for outlet in node.outlets.values() if isinstance(node, PrefillNode) else ():
                    outlet.stall()
                self.later(self.random.uniform(0.05, 1.5), self._go_on, node)
        elif kind == "kill prefill" and prefill.is_alive:
            for decode in self.decodes:
                self._unlink(prefill, decode)
            for outlet in prefill.outlets.values():
                outlet.kill()
            self._die(prefill)
            epoch = prefill.epoch
            self.gone.add(epoch)
            for decode in self.decodes:
                self._later_at(decode, self._judge, decode, epoch)
            if self.random.random() < 0.5:
                self.later(self.random.uniform(0, 0.3), self._fence, epoch)
        elif kind == "kill decode" and decode.is_alive:
            for prefill in self.prefills:
                self._unlink(prefill, decode)
            self._die(decode)

    def _mend(self, prefill: PrefillNode, decode: DecodeNode) -> None:
        self.cut.discard((prefill.slot, decode.slot))
        self._link(prefill, decode)

    def _go_on(self, node: Node) -> None:
        if node.is_stopped:
            for outlet in node.outlets.values() if isinstance(node, PrefillNode) else ():
                outlet.resume()
            node.resume()

    def _die(self, node: Node) -> None:
        node.is_alive = node.is_stopped = False
        node.inbox.clear()
        self.later(self.random.uniform(0.02, 0.3), self._restart, node)

    def _restart(self, node: Node) -> None:
        node.is_alive = True
        node.start()
        self.outcome["restart"] += 1
        for prefill in self.prefills:
            for decode in self.decodes:
                self._link(prefill, decode)

    def _judge(self, decode: DecodeNode, epoch: int) -> None:
        for verdict in decode.receiver.judge(epoch, self.now):
            self.outcome["judged landed" if verdict.landed else "judged dead"] += 1
            if not verdict.landed:
                decode.open_keys.remove(verdict.key)
        self._flush_decode(decode)

    def _fence(self, epoch: int) -> None:
        """The launcher's proof that the process is gone."""
        for decode in self.decodes:
            decode.do(partial(self._tell_gone, decode, epoch))

    def _tell_gone(self, decode: DecodeNode, epoch: int) -> None:
        decode.receiver.peer_gone(epoch, self.now)
        self._flush_decode(decode)

    # -- the end ----------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        for prefill in self.prefills:
            counts = prefill.pages.counts()
            if not prefill.is_alive or prefill.sender.keys() or counts.used or counts.pinned:
                return False
        for decode in self.decodes:
            counts = decode.pages.counts()
            if not decode.is_alive or decode.receiver.keys() or decode.open_keys:
                return False
            if counts.used or counts.pinned or counts.quarantined:
                return False
        return True

    def _assert_clean(self) -> None:
        for prefill in self.prefills:
            counts = prefill.pages.counts()
            assert not prefill.sender.keys(), f"transfers left: {prefill.sender.keys()}"
            assert prefill.opened == prefill.released, "a key was never released"
            assert counts.used == counts.pinned == counts.quarantined == 0, f"{counts}"
            assert prefill.sender.held_pages == 0
            prefill.pages.check_integrity()
        for decode in self.decodes:
            counts = decode.pages.counts()
            assert not decode.receiver.keys(), f"transfers left: {decode.receiver.keys()}"
            assert not decode.open_keys, f"no answer for {decode.open_keys}"
            assert counts.used == counts.pinned == counts.quarantined == 0, f"{counts}"
            assert decode.receiver.quarantined_pages == 0
            decode.pages.check_integrity()
        self.outcome.update({f"data {k}": n for k, n in self.fabric.happened.items()})
        for node in self.prefills:
            self.outcome.update({f"dropped {k}": n for k, n in node.sender.dropped.items()})
        for other in self.decodes:
            self.outcome.update({f"dropped {k}": n for k, n in other.receiver.dropped.items()})
            table = other.landing.table.dropped
            self.outcome.update({f"claim refused {k}": n for k, n in table.items()})
