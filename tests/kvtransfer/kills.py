"""Many copy processes at a time, killed in mid-copy: what they had is free soon, and no sooner.

forkserver: torch and all else imported once, no card touched
  '-- fork, a card of its own, copy, copy, ... killed             in waves of `at_once`
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import numpy as np

from benchmarks.transfer.far_pool import killable_pool
from tests.kvtransfer import sender_process
from tests.kvtransfer.pools import PoolForTest, force_copies, open_pool
from tests.kvtransfer.receiving import SENTINEL, Receiving, Sending, receiving
from tests.kvtransfer.sender_process import PAGE_BYTES, PAGE_TOKENS, PATIENT
from twolane.engine.allocator import PageAllocator
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.events import FirstToken, Released
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.send.sender import Sender
from twolane.kvtransfer.transports.mapped.ipc_outlet import IpcOutlet
from twolane.v1 import transfer_pb2

WITHIN_S = 60.0  # ten processes take cards of their own at once
COPIES = ("kernel", "engines")
_IMPORTS = ["pytest", "tests.kvtransfer.sender_process", "benchmarks.transfer.pools"]
_CARD_IMPORTS = ["torch", "triton", "twolane.engine.cuda.memory", "twolane.worker.cuda.memory"]


@dataclass(slots=True)
class Tally:
    """`mid_copy`: that had pages under way when they were killed."""

    kills: int = 0
    mid_copy: int = 0
    freed_early: int = 0  # while the process that may write to them was alive
    written_late: int = 0  # pages written to after they were free
    rows: int = 0  # that arrived meanwhile, each with the right bytes
    took_s: float = 0.0

    def check(self, n_kills: int) -> None:
        """Raises AssertionError."""
        assert self.kills == n_kills, self
        assert self.freed_early == self.written_late == 0, self
        assert self.mid_copy >= n_kills // 2, self
        assert self.rows >= n_kills, self


def victims(kind: str) -> ForkServerContext:
    """How processes start. Nothing in the forkserver may look at a card: its children could not."""
    context = get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS + _CARD_IMPORTS * (kind == "cuda"))
    return context


# -- senders --------------------------------------------------------------------------------


async def kill_senders(
    kind: str, copies: str, *, n_kills: int, at_once: int, row_pages: int, device: str = ""
) -> Tally:
    """A receiver here; senders that write into its pages by cuda_ipc, with sums."""
    tally, rng, begun_s = Tally(), random.Random(copies), time.monotonic()
    n_pages = 2 * at_once * row_pages
    async with receiving(n_pages, row_pages, kind, ("cuda_ipc",), lease=PATIENT) as (side, tasks):
        context = victims(kind)
        for _ in range(0, n_kills, at_once):
            side.pages.absolved.clear()
            senders = [_fork_sender(side, context, copies, device) for _ in range(at_once)]
            sendings = [Sending(sender) for sender in senders]  # type: ignore[arg-type]
            _watch_proofs(side, sendings, tally)
            for sending in sendings:
                tasks.create_task(sending.read(side))
            await asyncio.gather(*(_kill(side, sending, rng, tally) for sending in sendings))
            await _until(lambda: side.pages.counts().free == n_pages, side)
            await asyncio.sleep(0.05)
            freed = np.asarray(side.pages.absolved, dtype=np.int64)
            if freed.size:
                tally.written_late += int((side.pool[freed] != SENTINEL).any(axis=1).sum())
            side.pages.check_integrity()
            assert not side.receiver.keys()
        tally.rows = len(side.landed)
    tally.took_s = time.monotonic() - begun_s
    return tally


class _Forked:
    """What `Sending` needs of a process."""

    def __init__(self, process: ForkServerProcess, out: Connection) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.stdout = self._lines(out)
        self._process = process

    async def wait(self) -> None:
        await asyncio.to_thread(self._process.join)

    async def _lines(self, out: Connection) -> Any:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        file = os.fdopen(os.dup(out.fileno()), "rb")
        out.close()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        async for line in reader:
            yield line
        transport.close()


def _fork_sender(side: Receiving, context: ForkServerContext, copies: str, device: str) -> _Forked:
    out, into = context.Pipe(duplex=False)
    args = (into, device, side.endpoint, side.epoch, side.row_pages, side.kind, copies)
    process = context.Process(target=_send, args=args, daemon=True)
    process.start()
    into.close()
    return _Forked(process, out)


def _send(
    out: Connection, device: str, endpoint: str, epoch: int, n_pages: int, kind: str, copies: str
) -> None:
    """Until it is killed."""
    if device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    os.dup2(out.fileno(), 1)
    out.close()
    sending = sender_process.main(
        endpoint, epoch, "cuda_ipc", 0, n_pages, kind, copies, lease=PATIENT
    )
    asyncio.run(sending)


def _watch_proofs(side: Receiving, sendings: list[Sending], tally: Tally) -> None:
    believe = type(side.receiver).peer_gone

    def watched(epoch: int, now: float) -> None:
        tally.freed_early += any(s.epoch == epoch and not s.has_ended() for s in sendings)
        believe(side.receiver, epoch, now)

    setattr(side.receiver, "peer_gone", watched)  # noqa: B010


async def _kill(side: Receiving, sending: Sending, rng: random.Random, tally: Tally) -> None:
    """Once a row of its has arrived, and a later one has just been given pages: then it copies. If
    it has ended meanwhile, because we were late, in a later one."""
    while (await asyncio.wait_for(sending.lines.get(), WITHIN_S))[0] != "committed":
        pass
    await asyncio.sleep(rng.uniform(0, 0.2))
    end_s = time.monotonic() + WITHIN_S
    while True:
        await _until(lambda: not _is_sending(side, sending.epoch), side)
        await _until(lambda: _is_sending(side, sending.epoch), side)
        await asyncio.sleep(rng.uniform(0, 0.004))
        if _is_sending(side, sending.epoch):
            break
        assert time.monotonic() < end_s, "always late"
    tally.mid_copy += 1
    sending.signal(signal.SIGKILL)
    tally.kills += 1


def _is_sending(side: Receiving, epoch: int) -> bool:
    ins = side.receiver._ins.values()
    return any(i.key.sender_epoch == epoch and i.grant is not None for i in ins)


async def _until(condition: Any, side: Receiving) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end_s, f"{side.pages.counts()}, {side.receiver.keys()}"
        await asyncio.sleep(0.001)


# -- receivers ------------------------------------------------------------------------------

_P_EPOCH, _D_EPOCH = 1, 2
_SOURCE_PAGES = 4096


def kill_receivers(
    kind: str, copies: str, *, n_kills: int, at_once: int, row_pages: int, device: str = "0"
) -> Tally:
    """One sender here for each receiver, all out of one pool; receivers are pools and no more."""
    tally, begun_s = Tally(), time.monotonic()
    source, lock = open_pool(kind, _SOURCE_PAGES, PAGE_BYTES), threading.Lock()
    content = np.random.default_rng(1).integers(0, 256, (_SOURCE_PAGES, PAGE_BYTES), np.uint8)
    source.pages[np.arange(_SOURCE_PAGES)] = content
    force_copies(source, copies)
    context = victims(kind)

    def one(seed: int) -> None:
        rng = random.Random(f"{copies} {seed}")
        with killable_pool(device, 2 * _SOURCE_PAGES, PAGE_BYTES, kind=kind, context=context) as (
            address,
            kill,
        ):
            n_rows, was_copying = _send_until_killed(source, address, kill, row_pages, rng)
        with lock:
            tally.kills += 1
            tally.rows += n_rows
            tally.mid_copy += was_copying

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(one, range(n_kills)))
    assert (source.pages[np.arange(_SOURCE_PAGES)] == content).all()
    _check_sound(kind, source)
    source.close()
    tally.took_s = time.monotonic() - begun_s
    return tally


def _send_until_killed(
    source: PoolForTest, address: str, kill: Any, row_pages: int, rng: random.Random
) -> tuple[int, bool]:
    """Rows that were sent whole, and whether one was under way. All pages are free again soon."""
    outlet = IpcOutlet(address, source.transfers, digest="mix64")  # type: ignore[arg-type]
    books = PageAllocator(_SOURCE_PAGES)
    config = SenderConfig(post_bytes=max(row_pages // 4, 1) * PAGE_BYTES)
    sender = Sender(_P_EPOCH, books, page_tokens=PAGE_TOKENS, page_bytes=PAGE_BYTES, config=config)
    sender.attach_peer(_D_EPOCH, outlet, time.monotonic())
    n_rows, keys, kill_s = 0, list[Key](), 0.0
    for n in itertools.count():
        while len(keys) < 3:
            keys.append(_open_row(sender, books, f"{n} {len(keys)}", row_pages, rng))
        sender.poll(time.monotonic())
        for _, message in sender.take_outbox():
            _answer(sender, message, row_pages, rng)
        done = {event.key for event in sender.take_events() if isinstance(event, Released)}
        keys = [key for key in keys if key not in done]
        n_rows += len(done)
        if n_rows >= 3 and not kill_s:
            kill_s = time.monotonic() + rng.uniform(0, 0.05)
        was_copying = any(out.in_flight for out in sender._outs.values())
        if kill_s and time.monotonic() >= kill_s + (0.0 if was_copying else WITHIN_S):
            break
        time.sleep(0.0002)
    kill()
    for key in keys:
        sender.abandon(key, "the receiver died", time.monotonic())
    end_s = time.monotonic() + WITHIN_S
    while books.counts().free < _SOURCE_PAGES:
        assert time.monotonic() < end_s, f"pages were lost: {books.counts()}"
        sender.poll(time.monotonic())
        time.sleep(0.0005)
    books.check_integrity()
    outlet.close()
    assert not outlet.poll()
    return n_rows, was_copying


def _open_row(
    sender: Sender, books: PageAllocator, name: str, row_pages: int, rng: random.Random
) -> Key:
    key, now = Key(name, 1, _P_EPOCH, _D_EPOCH), time.monotonic()
    pages = books.try_take(row_pages)
    assert pages is not None
    rng.shuffle(pages)
    sender.open(key, n_tokens=row_pages * PAGE_TOKENS, prefix_hashes=[], priority=0, now=now)
    sender.offer(key, 0, pages, now)
    sender.finish(key, FirstToken(7), now)
    books.release(pages)
    return key


_generations = itertools.count(1)


def _answer(
    sender: Sender, message: transfer_pb2.ConnectRequest, row_pages: int, rng: random.Random
) -> None:
    """As a receiver would that believes everything."""
    now = time.monotonic()
    if message.HasField("reserve"):
        ticket = Key.of(message.reserve.key).ticket(next(_generations))
        pages = rng.sample(range(2 * _SOURCE_PAGES), row_pages)
        reserved = transfer_pb2.Reserved(ticket=ticket, pages=pages)
        sender.on_message(_D_EPOCH, transfer_pb2.ConnectResponse(reserved=reserved), now)
    elif message.HasField("done"):
        commit = transfer_pb2.Commit(ticket=message.done.ticket)
        sender.on_message(_D_EPOCH, transfer_pb2.ConnectResponse(commit=commit), now)


def _check_sound(kind: str, source: PoolForTest) -> None:
    """Copies of that card still do what they should."""
    target = open_pool(kind, _SOURCE_PAGES, PAGE_BYTES)
    lane = source.transfers.open_copy_stream()  # type: ignore[union-attr]
    peer = source.transfers.open_peer(target.transfers.export())  # type: ignore[union-attr]
    pages = np.random.default_rng(2).permutation(_SOURCE_PAGES)
    lane.to_peer(peer, pages, np.arange(_SOURCE_PAGES))
    fence = lane.mark()
    while not fence.is_done():
        time.sleep(0.001)
    assert (target.pages[np.arange(_SOURCE_PAGES)] == source.pages[pages]).all()
    lane.close()
    peer.close()
    target.close()
