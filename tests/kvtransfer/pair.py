"""One sender and one receiver, joined by hand: tests decide which message goes where and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.kvtransfer.config import LeaseConfig, ReceiverConfig, SenderConfig
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.events import FirstToken
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.testing.memory import Faults, MemoryFabric, MemoryLanding
from twolane.kvtransfer.transport import Posted, Wake
from twolane.v1 import transfer_pb2

P_EPOCH, D_EPOCH = 101, 202
PAGE_TOKENS, PAGE_BYTES = 16, 64
LEASE = LeaseConfig()
FIRST = FirstToken(42, -0.5, ((42, -0.5), (7, -1.5)))


class Timers:
    """Virtual time for the memory transport."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, int, Any, tuple[Any, ...]]] = []

    def call_later(self, delay_s: float, callback: Any, *args: Any) -> None:
        self.due.append((self.now + delay_s, len(self.due), callback, args))

    def run(self, until: float) -> None:
        while True:
            ready = [entry for entry in self.due if entry[0] <= until]
            if not ready:
                self.now = max(self.now, until)
                return
            first = min(ready, key=lambda entry: entry[:2])
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[2](*first[3])


class HandOutlet:
    """An outlet whose posts complete when the test says so."""

    def __init__(self) -> None:
        self.posts: list[tuple[int, int, CopyPlan]] = []
        self.cancelled: list[int] = []
        self.news: list[Posted] = []
        self.n_moved = 0

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        self.posts.append((post, generation, plan))

    def cancel(self, generation: int) -> None:
        self.cancelled.append(generation)

    def complete(self, *, ok: bool = True) -> None:
        """The oldest post."""
        post, _, plan = self.posts.pop(0)
        sums = np.arange(plan.n_pages if ok else 0, dtype=np.uint64)
        self.news.append(Posted(post, ok, sums))

    def poll(self) -> list[Posted]:
        news, self.news = self.news, []
        return news

    def set_wake(self, wake: Wake) -> None:
        pass

    def close(self) -> None:
        pass

    def close_soon(self) -> bool:
        return True


class Pair:
    """`send` and `receive` carry messages of one side to the other; `run` does all until quiet."""

    def __init__(
        self,
        *,
        n_pages: int = 8,
        sender_writes: bool = False,
        checksums: bool = True,
        faults: Faults | None = None,
        sender: SenderConfig | None = None,
        receiver: ReceiverConfig | None = None,
        may_grant: Any = lambda key, n: True,
        takes_last_chunk: bool = False,
    ) -> None:
        self.timers = Timers()
        self.now = 0.0
        self._takes_last_chunk = takes_last_chunk
        self.fabric = MemoryFabric(
            faults=faults or Faults(delay_s=(0.001, 0.001)),
            sender_writes=sender_writes,
            checksums=checksums,
            call_later=self.timers.call_later,
        )
        self.p_pages, self.d_pages = PageAllocator(n_pages), PageAllocator(n_pages)
        shape = (n_pages, PAGE_BYTES)
        self.p_pool: npt.NDArray[np.uint8] = np.zeros(shape, dtype=np.uint8)
        self.d_pool: npt.NDArray[np.uint8] = np.zeros(shape, dtype=np.uint8)
        self.sender = Sender(
            P_EPOCH,
            self.p_pages,
            page_tokens=PAGE_TOKENS,
            page_bytes=PAGE_BYTES,
            config=sender or SenderConfig(),
        )
        self.receiver = Receiver(
            D_EPOCH,
            self.d_pages,
            page_tokens=PAGE_TOKENS,
            page_bytes=PAGE_BYTES,
            may_grant=may_grant,
            config=receiver or ReceiverConfig(require_checksums=checksums),
        )
        self.landing: MemoryLanding = self.fabric.landing(D_EPOCH, self.d_pool)
        self.outlet = self.fabric.outlet(P_EPOCH, self.p_pool, self.landing.address)
        self.p_events: list[Any] = []
        self.d_events: list[Any] = []
        self.attach()

    def attach(self) -> None:
        takes = self._takes_last_chunk
        self.sender.attach_peer(D_EPOCH, self.outlet, self.now, takes_last_chunk=takes)
        self.receiver.attach_peer(P_EPOCH, self.landing, self.now)

    @staticmethod
    def key(name: str = "r", attempt: int = 1) -> Key:
        return Key(name, attempt, P_EPOCH, D_EPOCH)

    def open(self, key: Key, n_pages: int, *, expect: bool = True, **more: Any) -> list[int]:
        """Both sides hear of a row of n_pages, all computed. Returns the source pages."""
        n_tokens = n_pages * PAGE_TOKENS
        if expect:
            self.receiver.expect(key, n_tokens=n_tokens, now=self.now)
        options = {"prefix_hashes": [], "priority": 0, **more}
        self.sender.open(key, n_tokens=n_tokens, now=self.now, **options)
        return self.compute(key, n_pages)

    def granted(self, n_pages: int, name: str = "r") -> Key:
        """A row whose pages are granted, and on their way."""
        key = self.key(name)
        self.open(key, n_pages)
        self.tell_receiver(*self.to_receiver())
        self.tell_sender(*self.to_sender())
        return key

    def send_by(self, outlet: HandOutlet) -> None:
        """From now on the sender posts to this one."""
        self.sender.detach_peer(D_EPOCH, self.now)
        self.sender.forget_peer(D_EPOCH)
        self.sender.attach_peer(D_EPOCH, outlet, self.now)

    def compute(self, key: Key, n_pages: int) -> list[int]:
        pages = self.p_pages.try_take(n_pages)
        assert pages is not None
        for i, page in enumerate(pages):
            self.p_pool[page] = self.content(key, i)
        self.sender.offer(key, 0, pages, self.now)
        self.sender.finish(key, FIRST, self.now)
        self.p_pages.release(pages)
        return list(pages)

    def commit_and_release(self, key: Key) -> None:
        """The role takes the row, and gives its pages back at once."""
        self.d_pages.release([Page(page) for page in self.commit(key)])

    def commit(self, key: Key) -> list[int]:
        pages = self.receiver.try_commit(key, self.now)
        assert pages is not None
        return pages

    @staticmethod
    def content(key: Key, page: int) -> npt.NDArray[np.uint8]:
        seed = [key.attempt, page, *key.submission_id.encode()]
        return np.random.default_rng(seed).integers(0, 256, PAGE_BYTES, dtype=np.uint8)

    def to_receiver(self) -> list[transfer_pb2.ConnectRequest]:
        """Take what the sender says, undelivered."""
        return [message for _, message in self.sender.take_outbox()]

    def to_sender(self) -> list[transfer_pb2.ConnectResponse]:
        return [message for _, message in self.receiver.take_outbox()]

    def tell_receiver(self, *messages: transfer_pb2.ConnectRequest) -> None:
        for message in messages:
            self.receiver.on_message(P_EPOCH, message, self.now)

    def tell_sender(self, *messages: transfer_pb2.ConnectResponse) -> None:
        for message in messages:
            self.sender.on_message(D_EPOCH, message, self.now)

    def pass_time(self, seconds: float) -> None:
        """Bytes move and clocks tick; messages wait."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.05)
            self.timers.run(self.now)
            self.sender.poll(self.now)
            self.receiver.poll(self.now)
            self.sender.tick(self.now)
            self.receiver.tick(self.now)

    def run(self, seconds: float = 0.2) -> None:
        """Everything flows."""
        until = self.now + seconds
        while self.now < until:
            self.pass_time(0.01)
            for _ in range(4):
                self.tell_receiver(*self.to_receiver())
                self.tell_sender(*self.to_sender())
            self.p_events += self.sender.take_events()
            self.d_events += self.receiver.take_events()

    def assert_empty(self) -> None:
        """Nothing is held on either side."""
        for pages in (self.p_pages, self.d_pages):
            counts = pages.counts()
            assert counts.used == counts.pinned == counts.quarantined == 0, f"{counts}"
            pages.check_integrity()
        assert not self.sender.keys()
        assert not self.receiver.keys()


def kinds(messages: list[Any]) -> list[str]:
    """Names of the messages, in order."""
    return [message.WhichOneof("message") for message in messages]
