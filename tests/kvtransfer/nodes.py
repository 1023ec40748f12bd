"""Workers of a schedule: one slot each, one incarnation after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tests.kvtransfer.chaos import LEASE, PAGE_BYTES, PAGE_TOKENS, Bytes
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.kvtransfer.config import ReceiverConfig, SenderConfig
from twolane.kvtransfer.events import ReceiverEvent
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.testing.memory import MemoryFabric, MemoryOutlet


class Around(Protocol):
    """What a node asks of its world."""

    random: random.Random
    fabric: MemoryFabric


class Node:
    """What the two kinds of workers share: one slot, one incarnation after the other."""

    def __init__(self, world: Around, slot: int, n_pages: int) -> None:
        self.world = world
        self.slot = slot
        self.n_pages = n_pages
        self.is_alive = True
        self.is_stopped = False
        self.inbox: list[Callable[[], None]] = []  # what waits while it is stopped
        self.start()

    def start(self) -> None:
        self.epoch = self.world.random.getrandbits(62) | 1
        self.pool: Bytes = np.zeros((self.n_pages, PAGE_BYTES), dtype=np.uint8)
        self.pages = PageAllocator(self.n_pages)

    def do(self, work: Callable[[], None]) -> None:
        """Now, or when it goes on, or never."""
        if not self.is_alive:
            return
        if self.is_stopped:
            self.inbox.append(work)
        else:
            work()

    def resume(self) -> None:
        self.is_stopped = False
        inbox, self.inbox = self.inbox, []
        for work in inbox:
            work()


class PrefillNode(Node):
    def start(self) -> None:
        super().start()
        config = SenderConfig(lease=LEASE, post_bytes=2 * PAGE_BYTES, window_bytes=6 * PAGE_BYTES)
        self.sender = Sender(
            self.epoch, self.pages, page_tokens=PAGE_TOKENS, page_bytes=PAGE_BYTES, config=config
        )
        self.outlets: dict[int, MemoryOutlet] = {}
        self.rows: dict[Key, list[Any]] = {}  # pages that prefill itself still holds
        self.opened: set[Key] = set()
        self.released: set[Key] = set()

    def check_integrity(self) -> None:
        self.sender.check_integrity()
        pinned = self.sender.pinned_pages()
        ours = {page for pages in self.rows.values() for page in pages}
        assert self.pages.counts().pinned == len(set(pinned) - ours)


class DecodeNode(Node):
    def start(self) -> None:
        super().start()
        config = ReceiverConfig(
            lease=LEASE,
            queue_limit=3,
            landing_timeout_s=0.3,
            reattach_s=0.15,
            judge_wait_s=0.1,
            fence_after_s=1.0,
        )
        self.receiver = Receiver(
            self.epoch,
            self.pages,
            page_tokens=PAGE_TOKENS,
            page_bytes=PAGE_BYTES,
            may_grant=lambda key, n: True,
            config=config,
        )
        self.landing = self.world.fabric.landing(self.epoch, self.pool, f"decode-{self.slot}")
        self.rows: dict[Key, tuple[list[Any], list[Bytes]]] = {}
        self.open_keys: set[Key] = set()  # expected, and no event yet
        self.events: list[ReceiverEvent] = []  # what happened while a step runs

    def check_integrity(self) -> None:
        self.receiver.check_integrity()
        held = self.receiver.held_pages()
        for pages, _ in self.rows.values():
            held.update(pages)
        for number in range(self.n_pages):
            assert self.pages.refs_of(Page(number)) == held[number], f"references to page {number}"
        assert self.pages.counts().quarantined == self.receiver.quarantined_pages
