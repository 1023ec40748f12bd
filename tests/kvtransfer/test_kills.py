"""Copy processes killed many at a time, on the device double."""

from __future__ import annotations

import asyncio

import pytest

from tests.kvtransfer.kills import kill_receivers, kill_senders


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_kills", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_no_page_of_a_killed_sender_is_lost_or_reused_early(n_kills: int) -> None:
    tally = asyncio.run(
        kill_senders("double", "kernel", n_kills=n_kills, at_once=min(n_kills, 10), row_pages=400)
    )
    print(tally)
    tally.check(n_kills)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n_kills", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_all_pages_sent_to_a_killed_receiver_are_free_soon(n_kills: int) -> None:
    tally = kill_receivers(
        "double", "engines", n_kills=n_kills, at_once=min(n_kills, 10), row_pages=400
    )
    print(tally)
    tally.check(n_kills)
