"""Two real processes, every CPU transport: pages arrive, and deaths leak nothing."""

from __future__ import annotations

import asyncio
import random
import signal

import numpy as np
import pytest

from kvtransfer.events import Dead
from tests.kvtransfer.receiving import SENTINEL, receiving

TRANSPORTS = ["tcp", "unix", "shm"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_rows_of_scattered_pages_arrive_from_another_process(transport: str) -> None:
    async with receiving(n_pages=1500, row_pages=500) as (side, tasks):
        sending = await side.start_sender(tasks, transport, n_transfers=6)
        await side.wait_until("all landed", lambda: len(side.landed) == 6)
        assert await asyncio.wait_for(sending.process.wait(), 10) == 0
        assert side.landed == [str(i) for i in range(6)]
        assert side.used == {"p": transport}
        await side.wait_until("its link closed", lambda: side.driver.transports == {})
        assert side.pages.counts().free == side.pages.n_pages
        side.pages.check_integrity()


@pytest.mark.parametrize(("transport", "n_kills"), [("tcp", 2), ("unix", 1), ("shm", 3)])
async def test_sender_killed_in_mid_transfer_leaves_no_page_behind(
    transport: str, n_kills: int
) -> None:
    rng = random.Random(transport)
    async with receiving(n_pages=12_000, row_pages=4_000) as (side, tasks):
        in_the_middle = 0
        for _ in range(n_kills):
            side.landed.clear()
            side.pages.absolved.clear()
            sending = await side.start_sender(tasks, transport, n_transfers=0)
            await side.wait_until("one landed", lambda: side.landed)
            side.pages.writer = sending if transport == "shm" else None
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


async def test_pages_of_a_stopped_writer_stay_in_quarantine_until_it_answers() -> None:
    async with receiving(n_pages=12_000, row_pages=4_000) as (side, tasks):
        sending = await side.start_sender(tasks, "shm", n_transfers=0)
        await side.wait_until("one landed", lambda: side.landed)
        for _ in range(20):  # in the middle of a transfer, not at its very end
            await side.wait_until("pages granted", lambda: side.pages.counts().used)
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
