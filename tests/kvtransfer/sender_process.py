"""A prefill worker's sending side as a process of its own, to be killed and stopped by tests.

    python -m tests.kvtransfer.sender_process ENDPOINT RECEIVER_EPOCH TRANSPORT N_ROWS N_PAGES \
        KIND FAR LEASE_S

KIND is where its pages are: `host`, `double` or `cuda`.

Moves rows of N_PAGES random pages each, one after the other; prints `opened NAME` and
`committed NAME`. N_ROWS 0: for ever.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from dataclasses import replace

import grpc
import numpy as np

from tests.kvtransfer.pools import force_copies, open_pool
from twolane.engine.allocator import PageAllocator
from twolane.kvtransfer.config import MIB, LeaseConfig, SenderConfig
from twolane.kvtransfer.events import Committed, FirstToken, Released, SenderEvent
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.link.handshake import sender_hello
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.send.driver import PeerLink, SenderDriver
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig
from twolane.rpc.link import GrpcLink
from twolane.v1 import transfer_pb2_grpc

LAYOUT = '{"dtype":"uint8","page_tokens":16,"layers":1,"kv_heads":2,"head_dim":64}'
PAGE_TOKENS, PAGE_BYTES = 16, 4096
LEASE = LeaseConfig(lease_s=0.8, heartbeat_s=0.15, retry_first_s=0.03, retry_most_s=0.15)
PATIENT = replace(LEASE, lease_s=60.0)  # where nobody dies: a busy machine stops a process longer


def row_content(name: str, n_pages: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """What row `name` holds: the same in every process."""
    rng = np.random.default_rng(int(name))
    return rng.integers(0, 256, (n_pages, PAGE_BYTES), dtype=np.uint8)


async def main(
    endpoint: str,
    receiver_epoch: int,
    transport: str,
    n: int,
    n_pages: int,
    kind: str,
    copies: str = "",
    far: str = "",
    lease: LeaseConfig = LEASE,
) -> None:
    """`copies`: see `force_copies`. `far`: it says that it is on another host, and encrypts."""
    epoch = secrets.randbits(63)
    pages = PageAllocator(3 * n_pages)
    held = open_pool(kind, pages.n_pages, PAGE_BYTES)
    force_copies(held, copies)
    pool = held.pages
    scrambled = pages.try_take(pages.n_pages)
    assert scrambled is not None
    np.random.default_rng(1).shuffle(scrambled)
    pages.release(scrambled)  # so that rows are scattered
    config = SenderConfig(lease=lease, post_bytes=256 * 1024 if not copies else 4 * MIB)
    sender = Sender(epoch, pages, page_tokens=PAGE_TOKENS, page_bytes=PAGE_BYTES, config=config)
    released = asyncio.Event()

    def on_events(events: list[SenderEvent]) -> None:
        for event in events:
            if isinstance(event, Committed):
                print(f"committed {event.key.submission_id}", flush=True)
            if isinstance(event, Released):
                released.set()

    channel = grpc.aio.insecure_channel(endpoint)

    async def dial(address: str) -> PeerLink:
        stub = transfer_pb2_grpc.TransferServiceStub(channel)
        return GrpcLink(stub.Connect())

    lane = PageLane.ENCRYPTED if far else PageLane.PLAIN
    opener = OutletOpener(epoch, held.transfers, TransportConfig(checksums=True, page_lane=lane))
    hello = sender_hello(
        "p", epoch, "fingerprint", LAYOUT, transport.split(","), memory=opener.memory,
        page_lane=opener.page_lane,
    )  # fmt: skip
    hello.host = far or hello.host
    driver = SenderDriver(sender, hello, dial, opener, on_events, lease)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(driver.run())
        driver.connect(receiver_epoch, endpoint)
        done = 0
        while n == 0 or done < n:
            name = str(done)
            key = Key(name, 1, epoch, receiver_epoch)
            row = pages.try_take(n_pages)
            assert row is not None
            pool[np.asarray(row)] = row_content(name, n_pages)
            released.clear()
            sender.open(
                key, n_tokens=n_pages * PAGE_TOKENS, prefix_hashes=[], priority=0, now=loop.time()
            )
            driver.flush()
            print(f"opened {name} {epoch}", flush=True)
            sender.offer(key, 0, row, loop.time())
            sender.finish(key, FirstToken(7), loop.time())
            pages.release(row)
            driver.flush()
            await released.wait()
            done += 1
        pages.check_integrity()
        assert pages.counts().free == pages.n_pages
        running.cancel()
    await channel.close()
    print("bye", flush=True)


if __name__ == "__main__":
    where, receiver, by, count, size, what, host, held_s = sys.argv[1:]
    held = replace(LEASE, lease_s=float(held_s))
    asyncio.run(main(where, int(receiver), by, int(count), int(size), what, far=host, lease=held))
