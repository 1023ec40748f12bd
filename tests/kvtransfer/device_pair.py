"""Two ends of a device transport in one process, over the double, without sender and receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.testing.device import DeviceFaults, DoubleMemory
from twolane.kvtransfer.transport import Landing, Outlet
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.v1 import transfer_pb2

SIZE, N_PAGES = 4096, 64
P_EPOCH, D_EPOCH = 1, 2


def take_small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages: so that posts of these tests take several."""
    from twolane.kvtransfer.transports.common import pinned_ring
    from twolane.kvtransfer.transports.mapped import ipc_outlet
    from twolane.kvtransfer.transports.nixl import source
    from twolane.kvtransfer.transports.stream import device_destination, slot_outlet
    from twolane.kvtransfer.transports.stream import source as page_source

    for module in (pinned_ring, device_destination, page_source, slot_outlet):
        for name in ("STREAM_SLOT_BYTES", "SHARED_SLOT_BYTES"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 2 * SIZE)
    for start in (page_source.DeviceSource.__init__, device_destination.DeviceDestination.__init__):
        monkeypatch.setitem(start.__kwdefaults__, "slot_bytes", 2 * SIZE)  # type: ignore[arg-type]
    monkeypatch.setattr(ipc_outlet, "SLICE_BYTES", 2 * SIZE)
    monkeypatch.setattr(source, "_SLICE_BYTES", 2 * SIZE)


def wait_until(is_so: Callable[[], bool], within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.001)


def is_given(memory: DoubleMemory) -> bool:
    """Whether a device that stands still has been given work."""
    return any(stream._work for stream in memory.copy_streams)


class Ear:
    """Waits for news of one end."""

    def __init__(self, end: Outlet | Landing) -> None:
        self.end = end
        self.news: list[Any] = []
        self._woken = threading.Event()
        end.set_wake(self._woken.set)

    def wait_for(self, n: int, within_s: float = 30.0) -> list[Any]:
        while len(self.news) < n:
            assert self._woken.wait(within_s), f"only {self.news}"
            self._woken.clear()
            self.news += self.end.poll()
        return self.news

    def hears_nothing(self, for_s: float = 0.1) -> bool:
        self._woken.wait(for_s)
        self._woken.clear()
        heard = list(self.end.poll())
        self.news += heard
        return not heard


class DevicePair:
    """A sender's memory `p` full of random pages, a receiver's `d` of zeros, and the way."""

    def __init__(self, transport: str, *, sockets: int = 1, checksums: bool = True) -> None:
        self.p = DoubleMemory(N_PAGES, SIZE, faults=DeviceFaults())
        self.d = DoubleMemory(N_PAGES, SIZE, faults=DeviceFaults())
        self.p.pages[:] = np.random.default_rng(7).integers(0, 256, (N_PAGES, SIZE), np.uint8)
        config = TransportConfig(transports=(transport,), checksums=checksums, sockets=sockets)
        self.landing = open_landings(D_EPOCH, self.d, config)[transport]
        hello = transfer_pb2.ReceiverHello(
            epoch=D_EPOCH,
            transport=transport,
            transport_address=self.landing.address,
            checksums=self.landing.digests,
        )
        self.outlet = OutletOpener(P_EPOCH, self.p, config)(hello)
        self.out, self.into = Ear(self.outlet), Ear(self.landing)

    def grant(self, generation: int, *pages: int) -> None:
        self.landing.grant(P_EPOCH, generation, np.array(pages, dtype=np.int64))

    def post(
        self,
        post: int,
        generation: int,
        src: list[int],
        dst: list[int],
        first: int = 0,
        after: threading.Event | None = None,
    ) -> None:
        plan = CopyPlan.of(first, src, dst)
        self.outlet.post(post, generation, replace(plan, after=after))

    def has(self, src: list[int], dst: list[int]) -> bool:
        return bool((self.d.pages[dst] == self.p.pages[src]).all())

    def close(self) -> None:
        for memory in (self.p, self.d):
            memory.resume()
        self.outlet.close()
        self.outlet.close()
        self.landing.close()
        self.landing.close()
        for memory in (self.p, self.d):
            assert memory.n_pinned == 0, "host memory that stays pinned"
            memory.close()


@contextmanager
def device_pair(transport: str, **options: Any) -> Iterator[DevicePair]:
    pair = DevicePair(transport, **options)
    try:
        yield pair
    finally:
        pair.close()
