"""The nixl transport between processes with pages on cards, and a killed sender.

UCX goes by TCP with copies through the host: slow, but any machine has it. Less than a minute.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

pytest.importorskip("grpc")
pytest.importorskip("xxhash")
pytest.importorskip("nixl_cu13", reason="nixl-cu13 is not installed")

from tests.kvtransfer.receiving import receiving
from tests.kvtransfer.sender_process import PATIENT

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _by_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,cuda_copy")


@pytest.mark.parametrize(("here", "there"), [("cuda", "cuda"), ("host", "cuda"), ("cuda", "host")])
def test_rows_of_scattered_pages_arrive_over_nixl(here: str, there: str) -> None:
    async def run() -> None:
        async with receiving(1_500, 500, here, ("nixl",), lease=PATIENT) as (side, tasks):
            await side.start_sender(tasks, "nixl", 4, there)
            await side.wait_until("all landed", lambda: len(side.landed) == 4)
            assert side.used == {"p": "nixl"}

    asyncio.run(run())


def test_a_killed_sender_leaves_no_page_behind() -> None:
    async def run() -> None:
        async with receiving(12_000, 4_000, "cuda", ("nixl",)) as (side, tasks):
            for _ in range(5):
                side.landed.clear()
                sending = await side.start_sender(tasks, "nixl", 0, "cuda")
                await side.wait_until("one landed", lambda: side.landed)
                await side.wait_until("pages granted", lambda: side.pages.counts().used)
                sending.signal(signal.SIGKILL)
                await side.wait_until("no page held", lambda: side.pages.counts().free == 12_000)
                side.pages.check_integrity()

    asyncio.run(run())
