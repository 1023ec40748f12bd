"""A prefill and a decode worker's drivers over links in memory, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.kvtransfer.config import LeaseConfig, ReceiverConfig, SenderConfig
from twolane.kvtransfer.events import FirstToken, Landed
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.layouts.sources import MakeConvert, PageMaker
from twolane.kvtransfer.link.handshake import ReceiverIdentity
from twolane.kvtransfer.receive.driver import ReceiverDriver
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.send.driver import PeerLink, SenderDriver
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.testing.memory import MemoryFabric, MemoryOutlet
from twolane.layout import parse_layout
from twolane.rpc.link import LinkBrokenError
from twolane.testing.links import MemoryLink, link_pair
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import transfer_pb2

P_EPOCH, D_EPOCH = 11, 22
LAYOUT = '{"dtype":"uint8","page_tokens":16,"layers":1,"kv_heads":1,"head_dim":1}'
PAGE_BYTES = 32


class Two:
    """A prefill and a decode worker's transfer sides, and the wire between them."""

    def __init__(
        self,
        *,
        layout: str = LAYOUT,
        d_epoch: int = D_EPOCH,
        p_layout: str = LAYOUT,
        converts: Mapping[str, MakeConvert] | None = None,
        transports: tuple[str, ...] = ("memory",),
    ) -> None:
        """`layout` is the decode worker's; one that `converts` makes its pages of other layouts."""
        ours, theirs = parse_layout(p_layout), parse_layout(layout)
        loop = asyncio.get_running_loop()
        lease = LeaseConfig()
        self.fabric = MemoryFabric(call_later=loop.call_later)
        self.p_pages, self.d_pages = PageAllocator(8), PageAllocator(8)
        self.p_pool = np.zeros((8, ours.page_bytes), dtype=np.uint8)
        self.d_pool = np.zeros((8, theirs.page_bytes), dtype=np.uint8)
        self.page_tokens = ours.page_tokens
        self.maker = PageMaker(self.p_pool, p_layout if converts is not None else "", converts)
        self.sender = Sender(
            P_EPOCH,
            self.p_pages,
            page_tokens=ours.page_tokens,
            page_bytes=ours.page_bytes,
            config=SenderConfig(),
        )
        self.receiver = Receiver(
            d_epoch,
            self.d_pages,
            page_tokens=theirs.page_tokens,
            page_bytes=theirs.page_bytes,
            may_grant=lambda key, n: True,
            config=ReceiverConfig(),
        )
        self.landing = self.fabric.landing(d_epoch, self.d_pool)
        identity = ReceiverIdentity(
            worker_id="d", epoch=d_epoch, fingerprint="f", layout=layout, host="h", lease_ms=6000
        )
        self.p_events: list[Any] = []
        self.d_events: list[Any] = []
        self.d_driver = ReceiverDriver(
            self.receiver,
            identity,
            dict.fromkeys(transports, self.landing),
            self.on_d_events,
            lease,
        )
        self.hello = transfer_pb2.SenderHello(
            worker_id="p",
            epoch=P_EPOCH,
            fingerprint="f",
            layout=p_layout,
            transports=transports,
            host="h",
            makes_dtypes=self.maker.makes_dtypes,
        )
        self.p_driver = SenderDriver(
            self.sender,
            self.hello,
            self.dial,
            self.open_outlet,
            self.p_events.extend,
            lease,
            is_wanted=lambda epoch: self.rows_wait,
        )
        self.rows_wait = False  # in the prefill worker's queue, for the decode worker
        self.is_reachable = True
        self.is_mute = False  # who dials the decode worker is heard by nobody
        self.broken: set[str] = set()  # transports that cannot be opened
        self.wrap: Callable[[MemoryOutlet], Any] = lambda outlet: outlet  # those that are opened
        self.n_dials = 0
        self.links: list[MemoryLink[Any, Any]] = []
        self.tasks: asyncio.TaskGroup

    def on_d_events(self, events: list[Any]) -> None:
        self.d_events += events
        for event in events:
            if isinstance(event, Landed):
                pages = self.receiver.try_commit(event.key, asyncio.get_running_loop().time())
                self.d_pages.release([Page(page) for page in pages or ()])
                self.d_driver.flush()  # from within: must neither recurse nor be lost

    def open_outlet(self, hello: transfer_pb2.ReceiverHello) -> Any:
        if hello.transport in self.broken:
            raise OSError(f"{hello.transport} is broken")
        source = self.maker.source_for(hello.layout)
        return self.wrap(self.fabric.outlet(P_EPOCH, source, hello.transport_address))

    async def dial(self, endpoint: str) -> PeerLink:
        self.n_dials += 1
        if not self.is_reachable:
            raise LinkBrokenError("nobody there")
        here: MemoryLink[Any, Any]
        there: MemoryLink[Any, Any]
        here, there = link_pair()
        self.links.append(here)
        if not self.is_mute:
            self.tasks.create_task(self.d_driver.serve(there))
        return here

    def move(self, name: str, n_pages: int = 2) -> Key:
        now = asyncio.get_running_loop().time()
        key = Key(name, 1, P_EPOCH, self.receiver.epoch)
        pages = self.p_pages.try_take(n_pages)
        assert pages is not None
        self.p_pool[pages] = 5
        self.p_driver.connect(D_EPOCH, "there")
        key = key._replace(receiver_epoch=D_EPOCH)
        if self.receiver.epoch == D_EPOCH:
            self.receiver.expect(key, n_tokens=self.page_tokens * n_pages, now=now)
        self.sender.open(
            key, n_tokens=self.page_tokens * n_pages, prefix_hashes=[], priority=0, now=now
        )
        self.sender.offer(key, 0, pages, now)
        self.sender.finish(key, FirstToken(1), now)
        self.p_pages.release(pages)
        self.p_driver.flush()
        self.d_driver.flush()
        return key


def play(scene: Callable[[Two], Coroutine[Any, Any, None]], **options: Any) -> Two:
    async def main() -> Two:
        two = Two(**options)
        async with asyncio.TaskGroup() as two.tasks:
            running = [two.tasks.create_task(d.run()) for d in (two.p_driver, two.d_driver)]
            await scene(two)
            for task in running:
                task.cancel()
            for link in two.links:
                link.close()
        return two

    with virtual_time_runner() as runner:
        return runner.run(main())
