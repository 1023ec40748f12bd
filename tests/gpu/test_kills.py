"""Copy processes on a card, killed ten at a time: senders in mid-kernel and amid copies by engines,
and receivers that are written to.

`-m soak`: a hundred of each. Expected on a machine of 16 cores: 90 seconds for all of it.
"""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("triton")
pytest.importorskip("grpc")
pytest.importorskip("xxhash")

import torch

from tests.kvtransfer.kills import COPIES, kill_receivers, kill_senders

pytestmark = pytest.mark.gpu

FAR_CARD = str(torch.cuda.device_count() - 1)
KILLS = [10, pytest.param(50, marks=pytest.mark.soak)]  # by either kind of copies


@pytest.mark.parametrize("n_kills", KILLS)
@pytest.mark.parametrize("copies", COPIES)
def test_no_page_of_a_killed_sender_is_lost_or_reused_early(copies: str, n_kills: int) -> None:
    tally = asyncio.run(
        kill_senders("cuda", copies, n_kills=n_kills, at_once=10, row_pages=1000, device=FAR_CARD)
    )
    print(copies, tally)
    tally.check(n_kills)


@pytest.mark.parametrize("n_kills", KILLS)
@pytest.mark.parametrize("copies", COPIES)
def test_all_pages_sent_to_a_killed_receiver_are_free_soon(copies: str, n_kills: int) -> None:
    tally = kill_receivers(
        "cuda", copies, n_kills=n_kills, at_once=10, row_pages=1000, device=FAR_CARD
    )
    print(copies, tally)
    tally.check(n_kills)
