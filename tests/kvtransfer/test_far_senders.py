"""A sender that says it is on another host: how its pages travel, and come back when it is silent.

Real processes and sockets. The host is told apart by the hello alone, which is all that a receiver
knows of it.
"""

from __future__ import annotations

import asyncio
import signal

import numpy as np
import pytest

from tests.kvtransfer.receiving import SENTINEL, receiving
from tests.kvtransfer.sender_process import PATIENT
from tests.own_time import own_time
from twolane.kvtransfer import reasons
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transports.stream.landing import StreamLanding

FAR = "another boot/pid:1/mnt:1/net:1/uid:0"


@pytest.mark.parametrize("kind", ["host", "double"])
async def test_rows_of_a_sender_elsewhere_come_encrypted_though_both_know_quicker_ways(
    kind: str,
) -> None:
    async with receiving(300, 100, kind, page_lane=PageLane.ENCRYPTED, lease=PATIENT) as (
        side,
        tasks,
    ):
        sending = await side.start_sender(tasks, "cuda_ipc,shm,unix,tcp", 3, far=FAR)
        await side.wait_until("all landed", lambda: len(side.landed) == 3)
        assert side.used == {"p": "tcp"}
        assert side.done_socket.n_taken == 0, "its host has no way there"
        assert await asyncio.wait_for(sending.process.wait(), 60) == 0


async def test_pages_of_a_silent_sender_elsewhere_come_back_without_a_proof_of_its_end() -> None:
    n_pages = 12_000
    async with receiving(n_pages, 4_000, page_lane=PageLane.ENCRYPTED) as (side, tasks):
        landing = side.landings["tcp"]
        assert isinstance(landing, StreamLanding)
        sending = await side.start_sender(tasks, "shm,unix,tcp", n_transfers=0, far=FAR)
        await side.wait_until("one landed", lambda: side.landed)
        for _ in range(40):  # until bytes of a revoked grant were still to come
            await side.wait_until("pages granted", lambda: side.pages.counts().used)
            sending.signal(signal.SIGSTOP)
            await side.wait_until("suspicion, or it landed", lambda: not side.pages.counts().used)
            with own_time() as took:
                await side.wait_until("no page held", lambda: side.pages.counts().free == n_pages)
            assert took.s() < 6.0
            assert not sending.has_ended(), "nobody has proved anything"
            was_in_doubt = bool(side.pages.absolved)
            side.landed.clear()
            sending.signal(signal.SIGCONT)
            await side.wait_until("it goes on", lambda: side.landed)
            freed = np.asarray(side.pages.absolved, dtype=np.int64)
            assert (side.pool[freed] == SENTINEL).all(), "written to after it was freed"
            if was_in_doubt and landing.dropped[reasons.GENERATION]:
                break
            side.pages.absolved.clear()
        assert landing.dropped[reasons.GENERATION] >= 1
        assert was_in_doubt
        sending.signal(signal.SIGKILL)
        await side.wait_until("no page held", lambda: side.pages.counts().free == n_pages)
        side.pages.check_integrity()
