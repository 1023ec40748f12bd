"""A decode worker's receiving side in the test's process, and the senders it starts and kills."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tests.kvtransfer.pools import open_pool
from tests.kvtransfer.sender_process import (
    LAYOUT,
    LEASE,
    PAGE_BYTES,
    PAGE_TOKENS,
    row_content,
)
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.kvtransfer.config import LeaseConfig, ReceiverConfig
from twolane.kvtransfer.events import Landed, ReceiverEvent
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.link.done_socket import DoneSocket, OnDone
from twolane.kvtransfer.link.handshake import ReceiverIdentity
from twolane.kvtransfer.link.process_identity import host_identity
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.receive.driver import ReceiverDriver
from twolane.kvtransfer.receive.receiver import Receiver
from twolane.kvtransfer.transport_names import TRANSPORTS
from twolane.kvtransfer.transports.registry import TransportConfig, open_landings
from twolane.rpc.link import GrpcLink
from twolane.v1 import transfer_pb2, transfer_pb2_grpc

ROOT = Path(__file__).parents[2]
SENTINEL = 0xEE


class WatchedAllocator(PageAllocator):
    """Marks pages freed from quarantine, so that a later write shows, and tells when it happens."""

    def __init__(self, n_pages: int, pool: Any) -> None:
        super().__init__(n_pages)
        self.pool = pool
        self.absolved: list[int] = []  # and not taken again since
        self.freed_while_alive = 0
        self.writer: Sending | None = None

    def try_take(self, n: int) -> list[Page] | None:
        taken = super().try_take(n)
        if taken and self.absolved:
            again = set(taken)
            self.absolved = [page for page in self.absolved if page not in again]
        return taken

    def absolve(self, pages: Sequence[Any]) -> None:
        if self.writer is not None and not self.writer.has_ended():
            self.freed_while_alive += 1
        super().absolve(pages)
        self.pool[np.asarray(pages)] = SENTINEL
        self.absolved += pages


class Sending:
    """One sender process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.epoch = 0
        self.lines: asyncio.Queue[list[str]] = asyncio.Queue()
        self._pidfd = os.pidfd_open(process.pid)
        self._is_reaped = False

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def has_ended(self) -> bool:
        """Not even a zombie's thread runs any more; asked of the kernel, not of asyncio, as long as
        that knows it."""
        if self._is_reaped:
            return True
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except (ProcessLookupError, FileNotFoundError):
            return True  # reaped, maybe between the two questions
        return stat.rpartition(")")[2].split()[0] in "ZX"

    async def read(self, receiving: Receiving) -> None:
        """Expects each row that it opens, until it ends."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            words = raw.decode().split()
            if words[0] == "opened":
                self.epoch = int(words[2])
                receiving.expect(words[1], self.epoch)
            self.lines.put_nowait(words)
        await self.process.wait()
        self._is_reaped = True
        os.close(self._pidfd)


class CountingSocket(DoneSocket):
    """`n_taken`: how many DONE came by it. `keys`: that it has given out."""

    n_taken = 0

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[bytes] = []

    def key_for(self, sender_epoch: int) -> bytes:
        self.keys.append(super().key_for(sender_epoch))
        return self.keys[-1]

    @contextmanager
    def listening(self, on_done: OnDone) -> Iterator[None]:
        def count(epoch: int, message: transfer_pb2.ConnectRequest) -> None:
            self.n_taken += 1
            on_done(epoch, message)

        with super().listening(count):
            yield


class Receiving:
    """Receiver, driver, gRPC server and every transport of its kind of memory, or some."""

    def __init__(
        self,
        n_pages: int,
        row_pages: int,
        kind: str = "host",
        transports: tuple[str, ...] = TRANSPORTS,
        page_lane: PageLane = PageLane.PLAIN,
        lease: LeaseConfig = LEASE,
        *,
        by_datagram: bool = True,
    ) -> None:
        self.lease = lease
        self.epoch = secrets.randbits(63)
        self.row_pages = row_pages
        self.held = open_pool(kind, n_pages, PAGE_BYTES)
        self.kind = kind
        self.pool = self.held.pages
        self.pages = WatchedAllocator(n_pages, self.pool)
        self.receiver = Receiver(
            self.epoch,
            self.pages,
            page_tokens=PAGE_TOKENS,
            page_bytes=PAGE_BYTES,
            may_grant=lambda key, n: True,
            config=ReceiverConfig(lease=lease, reattach_s=0.3, landing_timeout_s=lease.lease_s / 2),
        )
        self.landings = open_landings(
            self.epoch,
            self.held.transfers,
            TransportConfig(checksums=True, transports=transports, page_lane=page_lane),
            self.held.memory,
        )
        identity = ReceiverIdentity(
            worker_id="d",
            epoch=self.epoch,
            fingerprint="fingerprint",
            layout=LAYOUT,
            host=host_identity(),
            lease_ms=int(lease.lease_s * 1000),
            memory=kind,
        )
        self.done_socket = CountingSocket()
        self.driver = ReceiverDriver(
            self.receiver,
            identity,
            self.landings,
            self.on_events,
            lease,
            done_socket=self.done_socket if by_datagram else None,
        )
        self.landed: list[str] = []
        self.used: dict[str, str] = {}  # transports of those that landed
        self.others: list[ReceiverEvent] = []
        self.endpoint = ""

    def expect(self, name: str, sender_epoch: int) -> None:
        key = Key(name, 1, sender_epoch, self.epoch)
        now = asyncio.get_running_loop().time()
        self.receiver.expect(key, n_tokens=self.row_pages * PAGE_TOKENS, now=now)
        self.driver.flush()

    def on_events(self, events: list[ReceiverEvent]) -> None:
        for event in events:
            if not isinstance(event, Landed):
                self.others.append(event)
                continue
            pages = self.receiver.try_commit(event.key, asyncio.get_running_loop().time())
            assert pages is not None
            expected = row_content(event.key.submission_id, self.row_pages)
            assert (self.pool[np.asarray(pages)] == expected).all(), "not the bytes that were sent"
            self.pages.release([Page(page) for page in pages])
            self.used |= {peer.worker_id: peer.transport for peer in self.driver.transports}
            self.landed.append(event.key.submission_id)

    async def wait_until(self, what: str, condition: Any) -> None:
        """Within 60 s: on a busy machine another process takes seconds to start."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + 60
        while not condition():
            if clock() > give_up_at:
                found = f"{self.pages.counts()}, {self.receiver.keys()}, {self.others}"
                raise AssertionError(f"never: {what}; {found}")
            await asyncio.sleep(0.01)

    async def start_sender(
        self,
        tasks: asyncio.TaskGroup,
        transport: str,
        n_transfers: int,
        kind: str = "",
        device: str | None = None,
        far: str = "",
    ) -> Sending:
        """`device`: the card that it sees, as CUDA_VISIBLE_DEVICES says it. `far`: see
        `sender_process`."""
        env = None if device is None else os.environ | {"CUDA_VISIBLE_DEVICES": device}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.kvtransfer.sender_process",
            self.endpoint,
            str(self.epoch),
            transport,
            str(n_transfers),
            str(self.row_pages),
            kind or self.kind,
            far,
            str(self.lease.lease_s),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=env,
        )
        sending = Sending(process)
        tasks.create_task(sending.read(self))
        return sending


class _Servicer(transfer_pb2_grpc.TransferServiceServicer):
    def __init__(self, driver: ReceiverDriver) -> None:
        self._driver = driver

    async def Connect(self, request_iterator: Any, context: Any) -> None:
        await self._driver.serve(GrpcLink(context))


@asynccontextmanager
async def receiving(
    n_pages: int,
    row_pages: int,
    kind: str = "host",
    transports: tuple[str, ...] = TRANSPORTS,
    page_lane: PageLane = PageLane.PLAIN,
    lease: LeaseConfig = LEASE,
    *,
    by_datagram: bool = True,
) -> AsyncIterator[tuple[Receiving, Any]]:
    """A running receiving side and the task group for its senders; all closed at the end.
    `by_datagram`: it takes DONE so, as receivers of older versions do not."""
    side = Receiving(
        n_pages, row_pages, kind, transports, page_lane, lease, by_datagram=by_datagram
    )
    server = grpc.aio.server()
    transfer_pb2_grpc.add_TransferServiceServicer_to_server(_Servicer(side.driver), server)
    side.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(side.driver.run())
            yield side, tasks
            running.cancel()
    finally:
        await server.stop(0)
        for landing in side.landings.values():
            landing.close()
        side.held.close()
