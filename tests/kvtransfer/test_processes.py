"""Two real processes, every CPU transport: pages arrive, and deaths leak nothing."""

from __future__ import annotations

import asyncio
import random
import signal

import numpy as np
import pytest

from tests.kvtransfer.nixl_marks import needs_nixl, over_nixl
from tests.kvtransfer.receiving import SENTINEL, receiving
from tests.kvtransfer.sender_process import PATIENT
from twolane.kvtransfer import reasons
from twolane.kvtransfer.events import Dead
from twolane.kvtransfer.link.done_socket import done_sender
from twolane.v1 import transfer_pb2

ALIKE = [
    *(("host", "host", transport) for transport in ("tcp", "unix", "shm")),
    *(("double", "double", transport) for transport in ("tcp", "unix", "shm", "cuda_ipc")),
    over_nixl("host", "host"),
    over_nixl("double", "double"),
]
MIXED = [
    (here, there, transport)
    for here, there in (("host", "double"), ("double", "host"))
    for transport in ("tcp", "unix")
] + [over_nixl("host", "double"), over_nixl("double", "host")]


@pytest.mark.parametrize(("here", "there", "transport"), [*ALIKE, *MIXED])
async def test_rows_of_scattered_pages_arrive_from_another_process(
    here: str, there: str, transport: str
) -> None:
    """`here` and `there` are where the receiver's and the sender's pages are; sums are on."""
    async with receiving(1500, 500, here, (transport,), lease=PATIENT) as (side, tasks):
        sending = await side.start_sender(tasks, transport, 6, there)
        await side.wait_until("all landed", lambda: len(side.landed) == 6)
        assert await asyncio.wait_for(sending.process.wait(), 60) == 0
        assert side.landed == [str(i) for i in range(6)]
        assert side.used == {"p": transport}
        assert side.done_socket.n_taken == 6, "one host"
        await side.wait_until("its link closed", lambda: side.driver.transports == [])
        assert side.pages.counts().free == side.pages.n_pages
        side.pages.check_integrity()


async def test_a_receiver_of_an_older_version_hears_of_done_by_its_link() -> None:
    async with receiving(40, 10, transports=("shm",), lease=PATIENT, by_datagram=False) as (
        side,
        tasks,
    ):
        await side.start_sender(tasks, "shm", 3)
        await side.wait_until("all landed", lambda: side.landed == ["0", "1", "2"])
        assert side.done_socket.n_taken == 0


async def test_a_broken_invariant_that_a_datagram_finds_ends_the_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def break_down(*heard: object) -> None:
        raise AssertionError("broken")

    with pytest.RaisesGroup(pytest.RaisesGroup(AssertionError)):
        async with receiving(n_pages=40, row_pages=10) as (side, _):
            monkeypatch.setattr(side.receiver, "on_message", break_down)
            await side.wait_until("open", lambda: side.done_socket.address)
            hello = transfer_pb2.ReceiverHello(
                done_address=side.done_socket.address, done_key=side.done_socket.key_for(7)
            )
            with done_sender(hello) as try_send_done:
                assert try_send_done is not None
                assert try_send_done(transfer_pb2.Done())
            await side.wait_until("over", lambda: False)


async def test_a_key_is_forgotten_with_its_link() -> None:
    async with receiving(n_pages=40, row_pages=10, lease=PATIENT) as (side, tasks):
        sending = await side.start_sender(
            tasks, "shm", n_transfers=0
        )  # it goes on until it is killed
        await side.wait_until("landed", lambda: side.landed)
        sending.signal(signal.SIGKILL)
        await side.wait_until("its link closed", lambda: side.driver.transports == [])
        (key,) = side.done_socket.keys
        n_taken = side.done_socket.n_taken
        hello = transfer_pb2.ReceiverHello(done_address=side.done_socket.address, done_key=key)
        with done_sender(hello) as try_send_done:
            assert try_send_done is not None
            assert try_send_done(transfer_pb2.Done())
        dropped = side.done_socket.dropped
        await side.wait_until("read", lambda: dropped or side.done_socket.n_taken > n_taken)
        assert dropped == {reasons.UNPROVEN: 1}


async def test_pages_travel_by_the_best_transport_that_both_kinds_of_memory_know() -> None:
    every = "cuda_ipc,shm,unix,tcp"
    for here, there, expected in (
        ("double", "double", "cuda_ipc"),
        ("host", "host", "shm"),
        ("double", "host", "unix"),
    ):
        async with receiving(n_pages=40, row_pages=10, kind=here, lease=PATIENT) as (side, tasks):
            await side.start_sender(tasks, every, 1, there)
            await side.wait_until("landed", lambda: side.landed == ["0"])
            assert side.used == {"p": expected}


@pytest.mark.parametrize(
    ("kind", "transport", "n_kills"),
    [
        ("host", "tcp", 2),
        ("host", "unix", 1),
        ("host", "shm", 3),
        pytest.param("host", "nixl", 3, marks=needs_nixl),
        ("double", "unix", 1),
        ("double", "shm", 2),
        ("double", "cuda_ipc", 2),
        pytest.param("double", "nixl", 2, marks=needs_nixl),
    ],
)
async def test_sender_killed_in_mid_transfer_leaves_no_page_behind(
    kind: str, transport: str, n_kills: int
) -> None:
    rng = random.Random(transport)
    async with receiving(12_000, 4_000, kind, (transport,), lease=PATIENT) as (side, tasks):
        in_the_middle = 0
        for _ in range(n_kills):
            side.landed.clear()
            side.pages.absolved.clear()
            sending = await side.start_sender(tasks, transport, n_transfers=0)
            await side.wait_until("one landed", lambda: side.landed)
            side.pages.writer = sending if side.landings[transport].sender_writes else None
            for _ in range(200):  # somewhere in a transfer, not between two
                await asyncio.sleep(rng.uniform(0, 0.02))
                if side.pages.counts().used:
                    break
            in_the_middle += bool(side.pages.counts().used)
            sending.signal(signal.SIGKILL)
            await side.wait_until("no page held", lambda: side.pages.counts().free == 12_000)
            await asyncio.sleep(0.05)
            freed = np.asarray(side.pages.absolved, dtype=np.int64)
            assert (side.pool[freed] == SENTINEL).all(), "written to after it was freed"
            side.pages.check_integrity()
        assert in_the_middle
        assert side.pages.freed_while_alive == 0
        assert all(isinstance(event, Dead) for event in side.others)


@pytest.mark.parametrize(("kind", "transport"), [("host", "shm"), ("double", "cuda_ipc")])
async def test_pages_of_a_stopped_writer_stay_in_quarantine_until_it_answers(
    kind: str, transport: str
) -> None:
    async with receiving(n_pages=12_000, row_pages=4_000, kind=kind) as (side, tasks):
        sending = await side.start_sender(tasks, transport, n_transfers=0)
        await side.wait_until("one landed", lambda: side.landed)
        for _ in range(20):  # in the middle of a transfer, not at its very end
            await side.wait_until("pages granted", lambda: side.pages.counts().used)
            side.pages.absolved.clear()  # a row that waited long on a busy machine was given up
            sending.signal(signal.SIGSTOP)
            held = side.pages.counts().used
            await side.wait_until("suspicion, or it landed", lambda: not side.pages.counts().used)
            if side.pages.counts().quarantined:
                break
            sending.signal(signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert side.pages.counts().quarantined == held
        assert not side.pages.absolved
        sending.signal(signal.SIGCONT)
        await side.wait_until("proof", lambda: not side.pages.counts().quarantined)
        assert not sending.has_ended()
        side.landed.clear()
        await side.wait_until("it goes on", lambda: len(side.landed) > 1)
        sending.signal(signal.SIGKILL)
        await side.wait_until("no page held", lambda: side.pages.counts().free == 12_000)
