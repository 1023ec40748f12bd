"""How often the sender of the cuda_ipc transport looks whether a copy has ended."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from tests.kvtransfer.device_pair import device_pair, wait_until
from twolane.kvtransfer.transports.mapped import ipc_outlet


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of the outlet's thread, in seconds, as they come."""
    found: list[float] = []

    def sleep(pause_s: float) -> None:
        found.append(pause_s)
        time.sleep(pause_s)

    monkeypatch.setattr(ipc_outlet, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return found


def test_a_copy_is_looked_at_the_less_often_the_longer_it_takes(pauses: list[float]) -> None:
    """Its thread takes the interpreter from those that feed the device."""
    with device_pair("cuda_ipc") as pair:
        pair.p.stall()
        pair.grant(1, 0)
        pair.post(1, 1, [0], [0])
        wait_until(lambda: ipc_outlet._MOST_PAUSE_S in pauses)
        until_then = pauses[: pauses.index(ipc_outlet._MOST_PAUSE_S)]
        pair.p.resume()
        assert [p.ok for p in pair.out.wait_for(1)] == [True]
    assert until_then[0] == ipc_outlet._COPY_PAUSE_S
    assert until_then == sorted(until_then)
    assert max(pauses) == ipc_outlet._MOST_PAUSE_S


def test_time_that_a_copy_waits_for_its_pages_does_not_make_it_looked_at_less_often(
    pauses: list[float],
) -> None:
    computed = threading.Event()
    with device_pair("cuda_ipc") as pair:
        pair.p.faults.copy_s = 0.2  # looked at meanwhile on any machine
        pair.grant(1, 0)
        pair.post(1, 1, [0], [0], after=computed)
        time.sleep(32 * ipc_outlet._MOST_PAUSE_S)
        computed.set()
        assert [p.ok for p in pair.out.wait_for(1)] == [True]
    copying = pauses[pauses.count(ipc_outlet._COMPUTE_PAUSE_S) :]
    assert copying[0] == ipc_outlet._COPY_PAUSE_S
