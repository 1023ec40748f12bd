"""On which threads the nixl transport uses UCX."""

from __future__ import annotations

import threading
from typing import Any

from tests.kvtransfer.device_pair import device_pair
from tests.kvtransfer.nixl_marks import needs_nixl

pytestmark = needs_nixl


def test_the_thread_that_drives_the_first_agent_has_entered_the_pages_device() -> None:
    """That agent was created on another thread. UCX would abort the process at the first page of a
    card."""
    entered: list[threading.Thread] = []
    with device_pair("nixl") as pair:
        landing: Any = pair.landing
        landing._summer.enter = lambda: entered.append(threading.current_thread())
        pair.grant(1, 3)
        pair.post(1, 1, [9], [3])
        assert [p.ok for p in pair.out.wait_for(1)] == [True]
        assert landing._thread in entered
