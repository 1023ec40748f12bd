"""Time, network and workers of a schedule."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.kvtransfer.chaos import LEASE, TICK_S, Chaos, Request, corrupted
from tests.kvtransfer.nodes import DecodeNode, Node, PrefillNode
from twolane.kvtransfer.testing.memory import MemoryFabric
from twolane.v1 import transfer_pb2


class Stage:
    """Two prefill and two decode workers, and a network that loses, repeats, delays and damages."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.random = random.Random(chaos.seed)
        self.now = 0.0
        self.calm = False  # the faults are over
        self.outcome: Counter[str] = Counter()
        self._timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._n_timers = 0
        self.fabric = MemoryFabric(
            seed=chaos.seed,
            faults=chaos.data,
            sender_writes=chaos.sender_writes,
            call_later=self.later,
        )
        self.prefills = [PrefillNode(self, slot, 12) for slot in range(2)]
        self.decodes = [DecodeNode(self, slot, 12) for slot in range(2)]
        self.cut: set[tuple[int, int]] = set()  # (prefill slot, decode slot)
        self.linked: set[tuple[int, int]] = set()  # (sender epoch, receiver epoch)
        self.requests: list[Request] = []
        self.gone: set[int] = set()  # epochs of dead prefill workers, fenced or not yet

    # -- time -------------------------------------------------------------------------------

    def later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        self._n_timers += 1
        heapq.heappush(self._timers, (self.now + delay_s, self._n_timers, callback, args))

    def advance(self, until: float) -> None:
        while self._timers and self._timers[0][0] <= until:
            self.now, _, callback, args = heapq.heappop(self._timers)
            callback(*args)
        self.now = until

    # -- the network ------------------------------------------------------------------------

    def _link(self, prefill: PrefillNode, decode: DecodeNode) -> None:
        pair = (prefill.epoch, decode.epoch)
        is_cut = (prefill.slot, decode.slot) in self.cut
        if is_cut or not prefill.is_alive or not decode.is_alive or pair in self.linked:
            return
        if decode.epoch not in prefill.outlets:
            outlet = self.fabric.outlet(prefill.epoch, prefill.pool, decode.landing.address)
            prefill.outlets[decode.epoch] = outlet
        self.linked.add(pair)
        decode.do(lambda: self._attach_to_decode(decode, pair[0]))
        prefill.do(lambda: self._attach_to_prefill(prefill, pair[1]))

    def _attach_to_decode(self, decode: DecodeNode, sender_epoch: int) -> None:
        decode.receiver.attach_peer(sender_epoch, decode.landing, self.now)
        self._flush_decode(decode)

    def _attach_to_prefill(self, prefill: PrefillNode, receiver_epoch: int) -> None:
        outlet = prefill.outlets[receiver_epoch]
        takes = receiver_epoch & 2 != 0  # the others are of an older version
        prefill.sender.attach_peer(
            receiver_epoch,
            outlet,
            self.now,
            takes_last_chunk=takes,
            try_send_done=lambda done: self._try_send_done(prefill, receiver_epoch, done),
        )
        self._flush_prefill(prefill)

    def _unlink(self, prefill: PrefillNode, decode: DecodeNode) -> None:
        pair = (prefill.epoch, decode.epoch)
        if pair in self.linked:
            self.linked.remove(pair)
            prefill.do(lambda: prefill.sender.detach_peer(pair[1], self.now))
            decode.do(lambda: decode.receiver.detach_peer(pair[0], self.now))

    def _carry(self, sender: Node, receiver: Node | None, message: Any) -> None:
        """One control message. What is late may meet another incarnation of its addressee."""
        if receiver is None:
            return
        copies = [message]
        if not self.calm:
            copies = [] if self._deals("drop") else [message]
            copies += [message] if self._deals("duplicate") else []
        for copy in copies:
            delay_s = self.random.uniform(0, 0.003)
            if not self.calm and self._deals("late"):
                delay_s = self.random.uniform(0, 3 * LEASE.lease_s)
            if not self.calm and self._deals("corrupt"):
                copy = corrupted(copy, self.random)
            self.later(delay_s, self._deliver, sender, receiver, copy)

    def _try_send_done(
        self, prefill: PrefillNode, receiver_epoch: int, done: transfer_pb2.Done
    ) -> bool:
        """DONE by a datagram: sometimes it cannot be sent, and nobody repeats one that is lost."""
        if done.ticket.generation % 2:
            return False
        self.outcome["done by datagram"] += 1
        request = transfer_pb2.ConnectRequest(done=done)
        self._carry(prefill, self._decode_of(receiver_epoch), request)
        return True

    def _deliver(self, sender: Node, receiver: Node, message: Any) -> None:
        def take() -> None:
            if isinstance(receiver, DecodeNode):
                receiver.receiver.on_message(sender.epoch, message, self.now)
                self._flush_decode(receiver)
            elif isinstance(receiver, PrefillNode):
                receiver.sender.on_message(sender.epoch, message, self.now)
                self._flush_prefill(receiver)

        receiver.do(take)

    def _deals(self, fault: str) -> bool:
        chance: float = getattr(self.chaos, fault)
        if chance and self.random.random() < chance:
            self.outcome[f"message {fault}"] += 1
            return True
        return False

    # -- driving ----------------------------------------------------------------------------

    def _tick(self, node: Node) -> None:
        self.later(TICK_S, self._tick, node)

        def work() -> None:
            if isinstance(node, PrefillNode):
                node.sender.poll(self.now)
                node.sender.tick(self.now)
                self._flush_prefill(node)
                node.check_integrity()
            elif isinstance(node, DecodeNode):
                node.check_integrity()
                node.receiver.poll(self.now)
                node.receiver.tick(self.now)
                self._flush_decode(node)

        if not node.is_stopped:
            node.do(work)

    def _later_at(
        self, node: Node, callback: Callable[..., None], *args: Any, within_s: float = 0.03
    ) -> None:
        epoch = node.epoch

        def work() -> None:
            if node.epoch == epoch:
                callback(*args)

        self.later(self.random.uniform(0, within_s), node.do, work)

    def _pick(self, options: list[Any]) -> Any:
        return options[self.random.randrange(len(options))]

    def _decode_of(self, epoch: int) -> DecodeNode | None:
        return next((d for d in self.decodes if d.epoch == epoch), None)

    def _prefill_of(self, epoch: int) -> PrefillNode | None:
        return next((p for p in self.prefills if p.epoch == epoch), None)

    # -- of the roles -----------------------------------------------------------------------

    def _flush_prefill(self, prefill: PrefillNode) -> None:
        raise NotImplementedError

    def _flush_decode(self, decode: DecodeNode) -> None:
        raise NotImplementedError
